#include "kernels/cuda/hybrid_attention_cuda.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/cuda/hybrid_backward_cuda.hpp"

namespace hedgerow::kernels::cuda {
namespace {

std::string why_not(const at::Tensor& q,
                    const HybridParameters& parameters,
                    const HybridOptions& options,
                    bool input_gradients) {
  const c10::DeviceGuard guard(q.device());
  if (q.scalar_type() != at::kBFloat16) {
    return c10::str("the fused CUDA kernels take bfloat16, not ", q.scalar_type());
  }
  if (!row_of(options.feature_map).is_activation()) {
    return "the fused CUDA kernels have no positive random and no Taylor features";
  }
  const KernelShape shape = kernel_shape(q, parameters, options);
  if (!has_kernel(shape) || columns_of(parameters.k, shape.head_dim) != shape.projected) {
    return c10::str("no fused CUDA kernel for head_dim ",
                    shape.head_dim,
                    " and maps of ",
                    shape.projected,
                    " columns",
                    shape.negation ? " with negation" : "",
                    "; there are head_dim 64 and 128, with 32, 64 or 128 columns with negation, 64 "
                    "or 128 without");
  }
  if (std::string reason = why_not_rows(q); !reason.empty()) {
    return reason;
  }
  return why_not_shared("the fused CUDA kernels", shared_bytes_needed(shape, input_gradients));
}

HybridForward hybrid_forward_cuda(const HybridProblem& problem, bool keep_for_backward) {
  const c10::DeviceGuard guard(problem.q.device());
  const Prepared p = prepare(problem);
  HybridForward out = make_hybrid_forward(problem, false);
  const at::TensorOptions options = problem.q.options();
  const Walked keys = walk_keys(p, options);
  ForwardArguments arguments;
  arguments.inputs = p.inputs;
  arguments.far = keys.pointers();
  arguments.features_k = keys.features_pointer();
  arguments.has_values = problem.v.defined();
  if (arguments.has_values) {
    arguments.y = out.y.data_ptr();
    arguments.y_is_float = out.y.scalar_type() == at::kFloat;
    arguments.y_batch = out.y.stride(0);
    arguments.y_head = out.y.stride(1);
    arguments.y_token = out.y.stride(2);
  }
  arguments.denominator = floats(out.denominator);
  arguments.linear_mass = floats(out.linear_mass);
  if (keep_for_backward) {
    const auto [B, H, G, T, D] = problem.shape;
    out.y_saved = out.y;
    out.saved.resize(kNumSaved);
    if (!arguments.y_is_float) {
      out.saved[kRest] = at::empty({B, H, T, D}, options);
      arguments.rest = bf16_out(out.saved[kRest]);
    }
    if (problem.windowed()) {
      out.saved[kPull] = at::empty({B, H, T, D}, options);
      out.saved[kMaxima] = at::empty_like(out.denominator);
      out.saved[kTies] = at::empty_like(out.denominator);
      arguments.pull = bf16_out(out.saved[kPull]);
      arguments.maxima = floats(out.saved[kMaxima]);
      arguments.ties = floats(out.saved[kTies]);
    }
  }
  launch_forward(p.shape, arguments, p.stream);
  return out;
}

// Any compiled kernel of the head_dim: without a linear branch nothing of a map is read. Of 64
// columns where the device does not hold what belongs to wider maps.
KernelShape window_shape(const at::Tensor& q) {
  const int head_dim = static_cast<int>(q.size(3));
  const KernelShape widest{head_dim, head_dim, false};
  const bool fits = shared_bytes_needed(widest, false) <= device_limits().shared_bytes;
  return fits ? widest : KernelShape{head_dim, 64, false};
}

std::string why_not_window(const at::Tensor& q) {
  const c10::DeviceGuard guard(q.device());
  if (q.scalar_type() != at::kBFloat16) {
    return c10::str("the fused CUDA kernels take bfloat16, not ", q.scalar_type());
  }
  if (!has_kernel(window_shape(q))) {
    return c10::str(
        "no fused CUDA kernel for head_dim ", q.size(3), "; there are head_dim 64 and 128");
  }
  if (std::string reason = why_not_rows(q); !reason.empty()) {
    return reason;
  }
  return why_not_shared("the fused CUDA kernels", shared_bytes_needed(window_shape(q), false));
}

at::Tensor window_cuda(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       const HybridOptions& options) {
  const c10::DeviceGuard guard(q.device());
  HybridOptions alone = options;
  alone.set_map({.feature_map = FeatureMapKind::kRelu, .negation = false});
  HybridParameters none;
  none.window_factors = at::zeros({q.size(1)}, q.options().dtype(at::kFloat));
  const HybridProblem problem = make_hybrid_problem(q, k, v, none, alone);
  const Prepared p = prepare(problem);
  HybridForward out = make_hybrid_forward(problem, false);
  ForwardArguments arguments;
  arguments.inputs = p.inputs;
  arguments.linear = false;
  arguments.y = out.y.data_ptr();
  arguments.y_is_float = out.y.scalar_type() == at::kFloat;
  arguments.y_batch = out.y.stride(0);
  arguments.y_head = out.y.stride(1);
  arguments.y_token = out.y.stride(2);
  arguments.denominator = floats(out.denominator);
  arguments.linear_mass = floats(out.linear_mass);
  launch_forward(window_shape(q), arguments, p.stream);
  return out.y;
}

HybridGradients hybrid_backward_cuda(const HybridProblem& problem,
                                     const HybridForward& forward,
                                     const at::Tensor& dy,
                                     const HybridNeeds& needs) {
  const c10::DeviceGuard guard(problem.q.device());
  Prepared p = prepare(problem);
  const RowGradients rows = prepare_rows(problem, forward, dy, p.stream);
  const Walked keys = walk_keys(p, problem.q.options());
  return gradients_of(problem, p, keys, rows, needs);
}

}  // namespace

const HybridBackend* hybrid_backend() {
  static constexpr HybridBackend kBackend{
      &why_not, &hybrid_forward_cuda, &why_not_window, &window_cuda, &hybrid_backward_cuda};
  return &kBackend;
}

}  // namespace hedgerow::kernels::cuda
