#include "kernels/hybrid_attention.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/aten/hybrid_attention_aten.hpp"
#include "kernels/backend.hpp"
#include "kernels/cpu/hybrid_attention_cpu.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/hybrid_passes.hpp"
#include "kernels/recall_cache.hpp"
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
  C10_THROW_ERROR(Error, c10::str("attention: unknown window layout ", static_cast<int>(layout)));
}

HybridForward hybrid_forward(Backend backend,
                             const at::Tensor& q,
                             const at::Tensor& k,
                             const at::Tensor& v,
                             const HybridParameters& parameters,
                             const HybridOptions& options,
                             bool keep_for_backward) {
  RECORD_USER_SCOPE("hedgerow::hybrid_forward");
  switch (backend) {
    case Backend::kCpu:
      return cpu::hybrid_forward_cpu(cpu::make_problem(q, k, v, parameters, options),
                                     keep_for_backward);
    case Backend::kCuda:
      return cuda::hybrid_backend()->forward(make_hybrid_problem(q, k, v, parameters, options),
                                             keep_for_backward);
    case Backend::kAten:
      break;
  }
  return aten::hybrid_forward_aten(make_hybrid_problem(q, k, v, parameters, options),
                                   keep_for_backward);
}

HybridGradients hybrid_backward(Backend backend,
                                const at::Tensor& q,
                                const at::Tensor& k,
                                const at::Tensor& v,
                                const HybridParameters& parameters,
                                const HybridOptions& options,
                                const HybridForward& forward,
                                const at::Tensor& dy,
                                const HybridNeeds& needs,
                                const at::Tensor& dy_linear) {
  RECORD_USER_SCOPE("hedgerow::hybrid_backward");
  // A caller may give factors that no window reads; no backend has a gradient of them.
  HybridNeeds present = needs;
  present.window_factors = needs.window_factors && options.layout != WindowLayout::kNone;
  TORCH_CHECK(
      !dy_linear.defined() || (backend != Backend::kCuda && !(needs.q || needs.k || needs.v)),
      "hybrid attention: y_linear has gradients of the parameters alone, and none on CUDA");
  switch (backend) {
    case Backend::kCpu:
      return cpu::hybrid_backward_cpu(
          cpu::make_problem(q, k, v, parameters, options), forward, dy, present, dy_linear);
    case Backend::kCuda:
      return cuda::hybrid_backend()->backward(
          make_hybrid_problem(q, k, v, parameters, options), forward, dy, present);
    case Backend::kAten:
      break;
  }
  return aten::hybrid_backward_aten(
      make_hybrid_problem(q, k, v, parameters, options), forward, dy, present, dy_linear);
}

Backend hybrid_backend_for(const at::Tensor& q,
                           const HybridParameters& parameters,
                           const HybridOptions& options,
                           bool input_gradients) {
  const bool fused =
      q.is_cuda() && cuda::hybrid_backend() != nullptr &&
      cuda::hybrid_backend()->why_not(q, parameters, options, input_gradients).empty();
  return fused ? Backend::kCuda : backend_for(q);
}

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
                            const HybridOptions& options,
                            Backend backend) {
    torch::autograd::variable_list saved = {
        q, k, v, layer_q, bias_q, layer_k, bias_k, window_factors};
    const HybridForward result =
        hybrid_forward(backend, q, k, v, parameters_of(saved), options, /*keep_for_backward=*/true);
    saved.push_back(result.y_saved);
    saved.push_back(result.denominator);
    for (const at::Tensor& each : result.saved) saved.push_back(present_or_empty(each));
    context->save_for_backward(saved);
    save_options(context, options, backend);
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
    const HybridGradients gradients =
        hybrid_backward(static_cast<Backend>(context->saved_data["backend"].toInt()),
                        saved[kQ],
                        saved[kK],
                        saved[kV],
                        parameters_of(saved),
                        saved_options(context),
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
    return options;
  }
};

void require_cuda_backend(const at::Tensor& q,
                          const HybridParameters& parameters,
                          const HybridOptions& options,
                          bool input_gradients) {
  TORCH_CHECK(cuda::hybrid_backend() != nullptr, "hybrid attention: ", cuda::kNoCudaKernels);
  const std::string reason =
      cuda::hybrid_backend()->why_not(q, parameters, options, input_gradients);
  TORCH_CHECK(reason.empty(), "hybrid attention: ", reason);
}

at::Tensor attend(Backend backend,
                  const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const HybridParameters& parameters,
                  const HybridOptions& options) {
  if (!any_requires_grad({q, k, v}) && !needs_any(needs_of(parameters))) {
    return hybrid_forward(backend, q, k, v, parameters, options, false).y;
  }
  return HybridFunction::apply(q,
                               k,
                               v,
                               present_or_empty(parameters.q.layer),
                               present_or_empty(parameters.q.bias),
                               present_or_empty(parameters.k.layer),
                               present_or_empty(parameters.k.bias),
                               present_or_empty(parameters.window_factors),
                               options,
                               backend);
}

at::Tensor share_of(Backend backend,
                    const at::Tensor& q,
                    const at::Tensor& k,
                    const HybridParameters& parameters,
                    const HybridOptions& options) {
  const c10::NoGradGuard no_grad;
  const HybridForward sums = hybrid_forward(backend, q, k, {}, parameters, options, false);
  return (sums.linear_mass / sums.denominator).mean(at::IntArrayRef{0, 2});
}

}  // namespace

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options) {
  check_problem(q, k, v, parameters, options);
  if (options.recall_cache > 0 && q.scalar_type() != at::kDouble) {
    return q.is_cpu() && !any_requires_grad({q, k, v}) && !needs_any(needs_of(parameters))
               ? hybrid_forward(Backend::kCpu, q, k, v, parameters, options, false).y
               : recall_attention(q, k, v, parameters, options);
  }
  return q.scalar_type() == at::kDouble
             ? hybrid_attention_reference(q, k, v, parameters, options)
             : attend(hybrid_backend_for(q, parameters, options, any_requires_grad({q, k, v})),
                      q,
                      k,
                      v,
                      parameters,
                      options);
}

at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options) {
  check_problem(q, k, {}, parameters, options);
  if (q.scalar_type() == at::kDouble) {
    const c10::NoGradGuard no_grad;
    const HybridWeights weights = hybrid_weights_reference(q, k, {}, parameters, options);
    return (weights.linear.sum(-1, true) / weights.denominator).mean(at::IntArrayRef{0, 2, 3});
  }
  return share_of(hybrid_backend_for(q, parameters, options, false), q, k, parameters, options);
}

namespace aten {

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options) {
  check_problem(q, k, v, parameters, options);
  return attend(Backend::kAten, q, k, v, parameters, options);
}

at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options) {
  check_problem(q, k, {}, parameters, options);
  return share_of(Backend::kAten, q, k, parameters, options);
}

}  // namespace aten

namespace cuda {

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options) {
  check_problem(q, k, v, parameters, options);
  require_cuda_backend(q, parameters, options, any_requires_grad({q, k, v}));
  return attend(Backend::kCuda, q, k, v, parameters, options);
}

at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options) {
  check_problem(q, k, {}, parameters, options);
  require_cuda_backend(q, parameters, options, false);
  return share_of(Backend::kCuda, q, k, parameters, options);
}

}  // namespace cuda
}  // namespace hedgerow::kernels
