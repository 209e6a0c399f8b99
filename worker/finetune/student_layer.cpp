#include "worker/finetune/student_layer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "kernels/softmax_attention.hpp"
#include "worker/model/linear_branch.hpp"

namespace hedgerow::worker {
namespace {

// In the order of their gradients.
std::array<at::Tensor*, 5> tensors_of(kernels::HybridParameters& parameters) {
  return {&parameters.q.layer,
          &parameters.q.bias,
          &parameters.k.layer,
          &parameters.k.bias,
          &parameters.window_factors};
}

}  // namespace

StudentLayer::StudentLayer(const StudentModel& model,
                           LayerWeights weights,
                           std::optional<kernels::HybridParameters> parameters,
                           std::int64_t rows)
    : model_(model), weights_(std::move(weights)), parameters_(std::move(parameters)) {
  for (const ProductSlots& slots : kProducts) (weights_.*slots.product).pack_with_transpose(rows);
}

std::vector<TrainedPart> StudentLayer::parts(int layer_idx) {
  std::vector<TrainedPart> parts;
  if (parameters_ && !is_linear_branch_off(*parameters_)) parts = parts_of(*parameters_, layer_idx);
  const auto norms = parts_of(weights_, model_.layers.config, layer_idx);
  parts.insert(parts.end(), norms.begin(), norms.end());
  return parts;
}

at::Tensor StudentLayer::attend(const Qkv& heads, LayerActivations* activations) const {
  if (activations == nullptr) {
    const at::NoGradGuard no_gradients;
    return parameters_ ? kernels::hybrid_attention(
                             heads.q, heads.k, heads.v, *parameters_, model_.attention)
                       : kernels::softmax_attention_trainable(heads.q, heads.k, heads.v);
  }
  const at::AutoGradMode with_gradients(true);
  std::vector<at::Tensor>& leaves = activations->leaves;
  leaves = {heads.q.detach().requires_grad_(true),
            heads.k.detach().requires_grad_(true),
            heads.v.detach().requires_grad_(true)};
  if (!parameters_) {
    activations->attended = kernels::softmax_attention_trainable(leaves[0], leaves[1], leaves[2]);
    return activations->attended.detach();
  }
  kernels::HybridParameters parameters = *parameters_;
  for (at::Tensor* tensor : tensors_of(parameters)) {
    if (!is_trained(*tensor)) continue;
    *tensor = tensor->detach().requires_grad_(true);
    leaves.push_back(*tensor);
  }
  activations->attended =
      kernels::hybrid_attention(leaves[0], leaves[1], leaves[2], parameters, model_.attention);
  return activations->attended.detach();
}

at::Tensor StudentLayer::forward(const at::Tensor& hidden_states,
                                 const LayerLora& lora,
                                 LayerActivations* activations) const {
  return run_layer(
      hidden_states,
      weights_,
      model_.layers,
      [&](const Qkv& heads) { return attend(heads, activations); },
      lora,
      activations == nullptr ? nullptr : &activations->tape);
}

LayerActivations StudentLayer::recompute(const at::Tensor& hidden_states,
                                         const LayerLora& lora) const {
  LayerActivations activations;
  run_layer(
      hidden_states,
      weights_,
      model_.layers,
      [&](const Qkv& heads) { return attend(heads, &activations); },
      lora,
      &activations.tape,
      /*only_tape=*/true);
  return activations;
}

Qkv StudentLayer::attention_gradient(const at::Tensor& gradient,
                                     LayerActivations& activations) const {
  const auto& config = model_.layers.config;
  const at::Tensor by_head = gradient.unflatten(-1, {config.num_attention_heads, config.head_dim})
                                 .transpose(1, 2)
                                 .contiguous();
  std::vector<at::Tensor> gradients;
  {
    const at::AutoGradMode with_gradients(true);
    gradients = torch::autograd::grad({activations.attended},
                                      activations.leaves,
                                      {by_head.to(activations.attended.scalar_type())});
  }
  activations.attended = at::Tensor();
  if (parameters_) {
    const at::NoGradGuard no_gradients;
    kernels::HybridParameters parameters = *parameters_;
    std::size_t next = 3;
    for (at::Tensor* tensor : tensors_of(parameters)) {
      if (is_trained(*tensor)) tensor->mutable_grad().add_(gradients[next++]);
    }
  }
  return {gradients[0], gradients[1], gradients[2]};
}

at::Tensor StudentLayer::backward(const at::Tensor& output_gradient,
                                  const at::Tensor& hidden_states,
                                  LayerActivations& activations,
                                  const LayerLora& lora,
                                  const LayerLora& gradient,
                                  bool needs_input) const {
  const OutputGradients after = layer_output_backward(
      output_gradient, weights_, model_.layers, lora, activations.tape, gradient);
  const Qkv heads = attention_gradient(after.attention_output, activations);
  return layer_qkv_backward(heads,
                            after.hidden_states,
                            hidden_states,
                            weights_,
                            model_.layers,
                            lora,
                            activations.tape,
                            gradient,
                            needs_input);
}

}  // namespace hedgerow::worker
