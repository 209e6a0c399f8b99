#include "kernels/hybrid_attention.hpp"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "kernels/hybrid_passes.hpp"
#include "kernels/problem/recall_cache.hpp"
#include "kernels/reference.hpp"

namespace hedgerow::kernels {
namespace {

// What the backward needs to know beside tensors.
struct Call : torch::CustomClassHolder {
  Call(const HybridOptions& of, Backend by) : options(of), backend(by) {}
  HybridOptions options;
  Backend backend;
};

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
    context->saved_data["call"] =
        c10::IValue::make_capsule(c10::make_intrusive<Call>(problem.options, backend));
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
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule =
        context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*capsule);
    const HybridGradients gradients = hybrid_backward(
        call.backend,
        make_hybrid_problem(saved[kQ], saved[kK], saved[kV], parameters_of(saved), call.options),
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
};

at::Tensor differentiable(const HybridProblem& problem,
                          Backend backend,
                          const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          const HybridParameters& parameters) {
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

// With a recall cache: the CPU's forward where no gradient is needed, else ATen operations.
Backend cache_backend(const HybridProblem& problem, bool learns, Backend asked) {
  const Backend chosen =
      learns && asked == Backend::kAuto
          ? Backend::kAten
          : choose_hybrid_backend("hybrid attention", asked, problem.q, problem.options, [] {
              return std::string("no CUDA kernel of the whole sequence has a recall cache");
            });
  TORCH_CHECK(chosen != Backend::kCpu || !learns,
              "hybrid attention: the CPU backend has no gradients with a recall cache; found "
              "recall_cache ",
              problem.options.recall_cache,
              ", which the ATen backend differentiates");
  return chosen;
}

}  // namespace

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            Backend backend) {
  if (q.scalar_type() == at::kDouble && backend == Backend::kAuto) {
    return hybrid_attention_reference(q, k, v, parameters, options);
  }
  const HybridProblem problem = make_hybrid_problem(q, k, v, parameters, options);
  const bool of_inputs = any_requires_grad({q, k, v});
  const bool learns = of_inputs || needs_any(needs_of(parameters));
  if (options.recall_cache > 0) {
    const Backend chosen = cache_backend(problem, learns, backend);
    return chosen == Backend::kAten ? recall_attention(q, k, v, parameters, options)
                                    : hybrid_forward(chosen, problem, false).y;
  }
  const Backend chosen = hybrid_backend_for(q, parameters, options, of_inputs, backend);
  return learns ? differentiable(problem, chosen, q, k, v, parameters)
                : hybrid_forward(chosen, problem, false).y;
}

at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options,
                        Backend backend) {
  const c10::NoGradGuard no_grad;
  if (q.scalar_type() == at::kDouble && backend == Backend::kAuto) {
    const HybridWeights weights = hybrid_weights_reference(q, k, {}, parameters, options);
    return (weights.linear.sum(-1, true) / weights.denominator).mean(at::IntArrayRef{0, 2, 3});
  }
  const HybridProblem problem = make_hybrid_problem(q, k, {}, parameters, options);
  const HybridForward sums =
      hybrid_forward(hybrid_backend_for(q, parameters, options, false, backend), problem, false);
  return (sums.linear_mass / sums.denominator).mean(at::IntArrayRef{0, 2});
}

}  // namespace hedgerow::kernels
