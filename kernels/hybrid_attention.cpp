#include "kernels/hybrid_attention.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/hybrid_passes.hpp"
#include "kernels/problem/recall_cache.hpp"
#include "kernels/reference.hpp"

namespace hedgerow::kernels {
namespace {

// A backend's forward and backward behind autograd. Saves the inputs, y (fp32), Z and what the
// backend's own backward reads: O(T).
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
                            const HybridProblem& problem,
                            Backend backend) {
    torch::autograd::variable_list saved = {
        q, k, v, layer_q, bias_q, layer_k, bias_k, window_factors};
    const HybridForward result = hybrid_forward(backend, problem, /*keep_for_backward=*/true);
    saved.push_back(result.y_saved);
    saved.push_back(result.denominator);
    for (const at::Tensor& each : result.saved) saved.push_back(present_or_empty(each));
    context->save_for_backward(saved);
    save_options(context, problem.options, backend);
    return result.y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    HybridForward forward;
    forward.y_saved = saved[kWindowFactors + 1];
    forward.denominator = saved[kWindowFactors + 2];
    for (std::size_t i = kWindowFactors + 3; i < saved.size(); ++i)
      forward.saved.push_back(undefined_if_empty(saved[i]));
    const HybridNeeds needs{
        .q = context->needs_input_grad(kQ),
        .k = context->needs_input_grad(kK),
        .v = context->needs_input_grad(kV),
        .map_q = context->needs_input_grad(kLayerQ) || context->needs_input_grad(kBiasQ),
        .map_k = context->needs_input_grad(kLayerK) || context->needs_input_grad(kBiasK),
        .window_factors = context->needs_input_grad(kWindowFactors)};
    const HybridGradients gradients = hybrid_backward(
        static_cast<Backend>(context->saved_data["backend"].toInt()),
        make_hybrid_problem(
            saved[kQ], saved[kK], saved[kV], parameters_of(saved), saved_options(context)),
        forward,
        dy[0],
        needs);
    return {gradients.q,
            gradients.k,
            gradients.v,
            like_parameter(gradients.map_q.layer, saved[kLayerQ]),
            like_parameter(gradients.map_q.bias, saved[kBiasQ]),
            like_parameter(gradients.map_k.layer, saved[kLayerK]),
            like_parameter(gradients.map_k.bias, saved[kBiasK]),
            like_parameter(gradients.window_factors, saved[kWindowFactors]),
            at::Tensor(),
            at::Tensor()};
  }

 private:
  static HybridParameters parameters_of(const torch::autograd::variable_list& inputs) {
    return {.q = {undefined_if_empty(inputs[kLayerQ]), undefined_if_empty(inputs[kBiasQ])},
            .k = {undefined_if_empty(inputs[kLayerK]), undefined_if_empty(inputs[kBiasK])},
            .window_factors = undefined_if_empty(inputs[kWindowFactors])};
  }

  static void save_options(torch::autograd::AutogradContext* context,
                           const HybridOptions& options,
                           Backend backend) {
    context->saved_data["kind"] = static_cast<std::int64_t>(options.feature_map.kind);
    context->saved_data["negation"] = options.feature_map.negation;
    context->saved_data["order"] = options.feature_map.order;
    context->saved_data["temperature"] = options.feature_map.temperature;
    context->saved_data["layout"] = static_cast<std::int64_t>(options.layout);
    context->saved_data["window_size"] = options.window_size;
    context->saved_data["num_sinks"] = options.num_sinks;
    context->saved_data["linear_cap"] = options.linear_cap;
    context->saved_data["backend"] = static_cast<std::int64_t>(backend);
  }

  static HybridOptions saved_options(torch::autograd::AutogradContext* context) {
    HybridOptions options;
    options.feature_map.kind = static_cast<FeatureMapKind>(context->saved_data["kind"].toInt());
    options.feature_map.negation = context->saved_data["negation"].toBool();
    options.feature_map.order = context->saved_data["order"].toInt();
    options.feature_map.temperature = context->saved_data["temperature"].toDouble();
    options.layout = static_cast<WindowLayout>(context->saved_data["layout"].toInt());
    options.window_size = context->saved_data["window_size"].toInt();
    options.num_sinks = context->saved_data["num_sinks"].toInt();
    options.linear_cap = context->saved_data["linear_cap"].toInt();
    return options;
  }
};

at::Tensor attend(Backend backend,
                  const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const HybridParameters& parameters,
                  const HybridOptions& options) {
  const HybridProblem problem = make_hybrid_problem(q, k, v, parameters, options);
  if (!any_requires_grad({q, k, v}) && !needs_any(needs_of(parameters))) {
    return hybrid_forward(backend, problem, false).y;
  }
  return HybridFunction::apply(q,
                               k,
                               v,
                               present_or_empty(parameters.q.layer),
                               present_or_empty(parameters.q.bias),
                               present_or_empty(parameters.k.layer),
                               present_or_empty(parameters.k.bias),
                               present_or_empty(parameters.window_factors),
                               problem,
                               backend);
}

// With a recall cache: the CPU's forward where nobody needs a gradient, else ATen operations.
at::Tensor attend_with_cache(Backend backend,
                             const at::Tensor& q,
                             const at::Tensor& k,
                             const at::Tensor& v,
                             const HybridParameters& parameters,
                             const HybridOptions& options) {
  const bool is_needed = any_requires_grad({q, k, v}) || needs_any(needs_of(parameters));
  const Backend chosen =
      is_needed && backend == Backend::kAuto
          ? Backend::kAten
          : choose_backend("hybrid attention", backend, q, [] {
              return std::string("no CUDA kernel of the whole sequence has a recall cache");
            });
  TORCH_CHECK(chosen != Backend::kCpu || !is_needed,
              "hybrid attention: the CPU backend has no gradients with a recall cache; found "
              "recall_cache ",
              options.recall_cache,
              ", which the ATen backend differentiates");
  return chosen == Backend::kAten
             ? recall_attention(q, k, v, parameters, options)
             : hybrid_forward(chosen, make_hybrid_problem(q, k, v, parameters, options), false).y;
}

}  // namespace

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            Backend backend) {
  check_problem(q, k, v, parameters, options);
  if (q.scalar_type() == at::kDouble && backend == Backend::kAuto) {
    return hybrid_attention_reference(q, k, v, parameters, options);
  }
  if (options.recall_cache > 0) {
    return attend_with_cache(backend, q, k, v, parameters, options);
  }
  const bool input_gradients = any_requires_grad({q, k, v});
  return attend(hybrid_backend_for(q, parameters, options, input_gradients, backend),
                q,
                k,
                v,
                parameters,
                options);
}

at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options,
                        Backend backend) {
  check_problem(q, k, {}, parameters, options);
  const c10::NoGradGuard no_grad;
  if (q.scalar_type() == at::kDouble && backend == Backend::kAuto) {
    const HybridWeights weights = hybrid_weights_reference(q, k, {}, parameters, options);
    return (weights.linear.sum(-1, true) / weights.denominator).mean(at::IntArrayRef{0, 2, 3});
  }
  const HybridForward sums =
      hybrid_forward(hybrid_backend_for(q, parameters, options, false, backend),
                     make_hybrid_problem(q, k, {}, parameters, options),
                     false);
  return (sums.linear_mass / sums.denominator).mean(at::IntArrayRef{0, 2});
}

}  // namespace hedgerow::kernels
