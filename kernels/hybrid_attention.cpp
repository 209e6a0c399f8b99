#include "kernels/hybrid_attention.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/hybrid_attention_cpu.hpp"
#include "kernels/reference.hpp"

namespace hedgerow::kernels {

std::int64_t window_begin(WindowLayout layout, std::int64_t window_size, std::int64_t query) {
  switch (layout) {
    case WindowLayout::kNone:
      return query + 1;
    case WindowLayout::kSliding:
      return std::max<std::int64_t>(0, query - window_size + 1);
    case WindowLayout::kTerraced:
      return std::max<std::int64_t>(0, (query / window_size - 1) * window_size);
  }
  TORCH_CHECK(false, "attention: unknown window layout ", static_cast<int>(layout));
}

namespace {

void check_device(const at::Tensor& q) {
  TORCH_CHECK(
      q.is_cpu(), "hybrid attention: q must be on the CPU in this build, found ", q.device());
}

// The fused forward and backward behind autograd. Saves the inputs, y (fp32) and Z: O(T).
class HybridFunction : public torch::autograd::Function<HybridFunction> {
 public:
  enum Input { kQ, kK, kV, kLayerQ, kBiasQ, kLayerK, kBiasK, kWindowFactors };

  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const at::Tensor& layer_q,
                            const at::Tensor& bias_q,
                            const at::Tensor& layer_k,
                            const at::Tensor& bias_k,
                            const at::Tensor& window_factors,
                            const HybridOptions& options) {
    const torch::autograd::variable_list inputs = {
        q, k, v, layer_q, bias_q, layer_k, bias_k, window_factors};
    const cpu::HybridProblem problem = problem_of(inputs, options);
    const cpu::HybridForward result = cpu::hybrid_forward_cpu(problem, true);
    torch::autograd::variable_list saved = inputs;
    saved.push_back(result.y_fp32);
    saved.push_back(result.denominator);
    context->save_for_backward(saved);
    save_options(context, options);
    return result.y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const cpu::HybridProblem problem = problem_of(saved, saved_options(context));
    cpu::HybridForward forward;
    forward.y_fp32 = saved[kWindowFactors + 1];
    forward.denominator = saved[kWindowFactors + 2];
    const cpu::HybridNeeds needs{
        .q = context->needs_input_grad(kQ),
        .k = context->needs_input_grad(kK),
        .v = context->needs_input_grad(kV),
        .map_q = context->needs_input_grad(kLayerQ) || context->needs_input_grad(kBiasQ),
        .map_k = context->needs_input_grad(kLayerK) || context->needs_input_grad(kBiasK),
        .window_factors = context->needs_input_grad(kWindowFactors)};
    cpu::HybridGradients gradients = cpu::hybrid_backward_cpu(problem, forward, dy[0], needs);
    const auto like = [](const at::Tensor& gradient, const at::Tensor& parameter) {
      return gradient.defined() ? gradient.reshape(parameter.sizes()).to(parameter.scalar_type())
                                : gradient;
    };
    return {gradients.q,
            gradients.k,
            gradients.v,
            like(gradients.map_q.layer, saved[kLayerQ]),
            like(gradients.map_q.bias, saved[kBiasQ]),
            like(gradients.map_k.layer, saved[kLayerK]),
            like(gradients.map_k.bias, saved[kBiasK]),
            like(gradients.window_factors, saved[kWindowFactors]),
            at::Tensor()};
  }

 private:
  static cpu::HybridProblem problem_of(const torch::autograd::variable_list& inputs,
                                       const HybridOptions& options) {
    const HybridParameters parameters{
        .q = {undefined_if_empty(inputs[kLayerQ]), undefined_if_empty(inputs[kBiasQ])},
        .k = {undefined_if_empty(inputs[kLayerK]), undefined_if_empty(inputs[kBiasK])},
        .window_factors = undefined_if_empty(inputs[kWindowFactors])};
    return cpu::make_hybrid_problem(inputs[kQ], inputs[kK], inputs[kV], parameters, options);
  }

  static void save_options(torch::autograd::AutogradContext* context,
                           const HybridOptions& options) {
    context->saved_data["kind"] = static_cast<std::int64_t>(options.feature_map.kind);
    context->saved_data["negation"] = options.feature_map.negation;
    context->saved_data["layout"] = static_cast<std::int64_t>(options.layout);
    context->saved_data["window_size"] = options.window_size;
  }

  static HybridOptions saved_options(torch::autograd::AutogradContext* context) {
    HybridOptions options;
    options.feature_map.kind = static_cast<FeatureMapKind>(context->saved_data["kind"].toInt());
    options.feature_map.negation = context->saved_data["negation"].toBool();
    options.layout = static_cast<WindowLayout>(context->saved_data["layout"].toInt());
    options.window_size = context->saved_data["window_size"].toInt();
    return options;
  }
};

}  // namespace

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options) {
  check_attention(q, k, v);
  check_parameters(parameters, options, q.size(1), q.size(3), q.device());
  if (q.scalar_type() == at::kDouble) {
    return hybrid_attention_reference(q, k, v, parameters, options);
  }
  check_device(q);
  if (!any_requires_grad({q,
                          k,
                          v,
                          parameters.q.layer,
                          parameters.q.bias,
                          parameters.k.layer,
                          parameters.k.bias,
                          parameters.window_factors})) {
    return cpu::hybrid_forward_cpu(cpu::make_hybrid_problem(q, k, v, parameters, options), false).y;
  }
  return HybridFunction::apply(q,
                               k,
                               v,
                               present_or_empty(parameters.q.layer),
                               present_or_empty(parameters.q.bias),
                               present_or_empty(parameters.k.layer),
                               present_or_empty(parameters.k.bias),
                               present_or_empty(parameters.window_factors),
                               options);
}

at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options) {
  const c10::NoGradGuard no_grad;
  check_attention(q, k, {});
  check_parameters(parameters, options, q.size(1), q.size(3), q.device());
  if (q.scalar_type() == at::kDouble) {
    const HybridWeights weights = hybrid_weights_reference(q, k, parameters, options);
    return (weights.linear.sum(-1, true) / weights.denominator).mean(at::IntArrayRef{0, 2, 3});
  }
  check_device(q);
  const cpu::HybridForward sums =
      cpu::hybrid_forward_cpu(cpu::make_hybrid_problem(q, k, {}, parameters, options), false);
  return (sums.linear_mass / sums.denominator).mean(at::IntArrayRef{0, 2});
}

}  // namespace hedgerow::kernels
