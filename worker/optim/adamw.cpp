#include "worker/optim/adamw.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <cmath>

namespace hedgerow::worker {

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const at::Tensor& parameter : parameters_) {
    exp_avg_.push_back(at::zeros_like(parameter));
    exp_avg_sq_.push_back(at::zeros_like(parameter));
  }
}

double clip_factor(double norm, double max_norm) {
  constexpr double kTorchEpsilon = 1e-6;  // of torch.nn.utils.clip_grad_norm_
  return max_norm > 0.0 && norm > max_norm ? max_norm / (norm + kTorchEpsilon) : 1.0;
}

double AdamW::clip_gradients(double max_norm) {
  RECORD_USER_SCOPE("hedgerow::clip_gradients");
  const c10::NoGradGuard no_grad;
  double squares = 0.0;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined())
      squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  const double norm = std::sqrt(squares);
  if (const double factor = clip_factor(norm, max_norm); factor != 1.0) {
    for (at::Tensor& parameter : parameters_) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
    }
  }
  return norm;
}

void AdamW::step(double learning_rate) {
  RECORD_USER_SCOPE("hedgerow::adamw");
  const c10::NoGradGuard no_grad;
  ++num_steps_;
  const double correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(num_steps_));
  const double correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(num_steps_));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i];
    const at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (options_.weight_decay != 0.0) parameter.mul_(1.0 - learning_rate * options_.weight_decay);
    exp_avg_[i].mul_(options_.beta1).add_(gradient, 1.0 - options_.beta1);
    exp_avg_sq_[i].mul_(options_.beta2).addcmul_(gradient, gradient, 1.0 - options_.beta2);
    const at::Tensor denominator =
        (exp_avg_sq_[i].sqrt() / std::sqrt(correction2)).add_(options_.epsilon);
    parameter.addcdiv_(exp_avg_[i], denominator, -learning_rate / correction1);
    parameter.mutable_grad() = at::Tensor();
  }
}

}  // namespace hedgerow::worker
