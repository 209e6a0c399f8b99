// hedgerow::hybrid_attention, and its two directions as operators of their own: where a gradient is
// wanted, deploy/huggingface/modeling/operators_hedgerow.py puts those behind autograd.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/hybrid_passes.hpp"
#include "kernels/ops/shapes.hpp"

namespace hedgerow::kernels::ops {
namespace {

using at::Tensor;
enum Input { kQ, kK, kV, kLayerQ, kBiasQ, kLayerK, kBiasK, kWindowFactors, kNumInputs };
using Needs = std::array<bool, kNumInputs>;
// y, y as the backward reads it (absent: y itself), denominator, rest, pull, maxima, ties (the
// fused CUDA backend's; absent elsewhere).
using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

HybridOptions options_of(const AttentionArguments& a, bool fp32_output) {
  HybridOptions options = a.options;
  options.fp32_output = fp32_output;
  return options;
}

at::ScalarType output_dtype(const Tensor& q, bool fp32_output) {
  return fp32_output ? sum_dtype_of(q) : q.scalar_type();
}

// Whether CUDA's fused kernels compute this; the problem must have been checked.
bool fuses(const AttentionArguments& a, const Tensor& q, bool input_gradients) {
  const cuda::HybridBackend* backend = cuda::hybrid_backend();
  return q.is_cuda() && backend != nullptr &&
         backend->why_not(q, a.parameters(), a.options, input_gradients).empty();
}

// fp64 in the chunked ATen backend, as anything else that no fused backend takes: T x T is for
// tests.
Backend backend_of(const AttentionArguments& a, const Tensor& q, bool fused, bool input_gradients) {
  if (q.scalar_type() == at::kDouble) return Backend::kAten;
  TORCH_CHECK(!fused || fuses(a, q, input_gradients),
              "hybrid attention: fused must be false for this problem on ",
              q.device(),
              ", found true; hybrid_is_fused says which");
  return fused ? Backend::kCuda
               : hybrid_backend_for(q,
                                    a.parameters(),
                                    a.options,
                                    input_gradients,
                                    q.is_cuda() ? Backend::kAten : Backend::kAuto);
}

// The backward knows no cache.
void check_no_recall(const AttentionArguments& a) {
  TORCH_CHECK(a.options.recall_cache == 0,
              "hybrid attention: recall_cache must be 0 where a gradient is wanted, found ",
              a.options.recall_cache);
}

Tensor attend(
    const AttentionArguments& a, const Tensor& q, const Tensor& k, const Tensor& v, bool fp32) {
  const c10::NoGradGuard no_grad;
  const bool plain = q.scalar_type() == at::kDouble && a.options.recall_cache == 0;
  return in_rows(hybrid_attention(
      q, k, v, a.parameters(), options_of(a, fp32), plain ? Backend::kAten : Backend::kAuto));
}

bool is_fused(const AttentionArguments& a,
              const Tensor& q,
              const Tensor& k,
              const Tensor& v,
              bool input_gradients) {
  static_cast<void>(make_hybrid_problem(q, k, v, a.parameters(), a.options));
  return fuses(a, q, input_gradients);
}

Forward forward(const AttentionArguments& a,
                const Tensor& q,
                const Tensor& k,
                const Tensor& v,
                bool fp32_output,
                bool fused) {
  const c10::NoGradGuard no_grad;
  const HybridProblem problem =
      make_hybrid_problem(q, k, v, a.parameters(), options_of(a, fp32_output));
  check_no_recall(a);
  const Backend backend = backend_of(a, q, fused, /*input_gradients=*/false);
  const HybridForward out = hybrid_forward(backend, problem, true);
  const bool own = out.y_saved.defined() && !out.y_saved.is_same(out.y);
  const auto saved = [&](cuda::Saved which) {
    return backend == Backend::kCuda && out.saved[which].defined() ? out.saved[which] : absent(q);
  };
  return {in_rows(out.y),
          own ? in_rows(out.y_saved) : absent(q),
          out.denominator,
          saved(cuda::kRest),
          saved(cuda::kPull),
          saved(cuda::kMaxima),
          saved(cuda::kTies)};
}

Gradients backward(const AttentionArguments& a,
                   const Tensor& dy,
                   const Tensor& q,
                   const Tensor& k,
                   const Tensor& v,
                   const Tensor& y,
                   const Tensor& denominator,
                   const Tensor& rest,
                   const Tensor& pull,
                   const Tensor& maxima,
                   const Tensor& ties,
                   bool fused,
                   Needs needs) {
  // The ATen backend's maps walk a graph of their own, and the dispatcher calls kernels with
  // recording excluded; GradMode stays off.
  const c10::impl::ForceDispatchKeyGuard recording(
      c10::impl::tls_local_dispatch_key_set().included_,
      c10::impl::tls_local_dispatch_key_set().excluded_ - c10::autograd_dispatch_keyset);
  const c10::NoGradGuard no_grad;
  const HybridProblem problem = make_hybrid_problem(q, k, v, a.parameters(), a.options);
  HybridForward saved;
  saved.y_saved = y;
  saved.denominator = denominator;
  const Backend backend = backend_of(a, q, fused, needs[kQ] || needs[kK] || needs[kV]);
  if (backend == Backend::kCuda) {
    saved.saved = {undefined_if_empty(rest),
                   undefined_if_empty(pull),
                   undefined_if_empty(maxima),
                   undefined_if_empty(ties)};
  }
  const HybridGradients g = hybrid_backward(backend,
                                            problem,
                                            saved,
                                            dy,
                                            {.q = needs[kQ],
                                             .k = needs[kK],
                                             .v = needs[kV],
                                             .map_q = needs[kLayerQ] || needs[kBiasQ],
                                             .map_k = needs[kLayerK] || needs[kBiasK],
                                             .window_factors = needs[kWindowFactors]});
  const auto input = [&](Input i, const Tensor& gradient) {
    return needs[i] ? gradient.contiguous() : absent(q);
  };
  const auto like = [&](Input i, const Tensor& gradient, const std::optional<Tensor>& parameter) {
    if (!needs[i] || !parameter.has_value()) return absent(q);
    // Without a window its factors have no part in y.
    return gradient.defined() ? like_parameter(gradient, *parameter).contiguous()
                              : at::zeros(parameter->sizes(), parameter->options());
  };
  return {input(kQ, g.q),
          input(kK, g.k),
          input(kV, g.v),
          like(kLayerQ, g.map_q.layer, a.layer_q),
          like(kBiasQ, g.map_q.bias, a.bias_q),
          like(kLayerK, g.map_k.layer, a.layer_k),
          like(kBiasK, g.map_k.bias, a.bias_k),
          like(kWindowFactors, g.window_factors, a.window_factors)};
}

Tensor attend_shape(const AttentionArguments& a,
                    const Tensor& q,
                    const Tensor& k,
                    const Tensor& v,
                    bool fp32_output) {
  check_known(a, q, k, v);
  return empty_in_rows(q, output_dtype(q, fp32_output));
}

Forward forward_shape(const AttentionArguments& a,
                      const Tensor& q,
                      const Tensor& k,
                      const Tensor& v,
                      bool fp32_output,
                      bool fused) {
  check_known(a, q, k, v);
  check_no_recall(a);
  const at::ScalarType dtype = output_dtype(q, fp32_output), sums = sum_dtype_of(q);
  const auto per_query = [&] { return empty_of(q, q.sym_sizes().slice(0, 3), sums); };
  const auto fused_rows = [&](bool there) {
    return fused && there ? empty_of(q, q.sym_sizes(), q.scalar_type()) : absent(q);
  };
  const bool window = fused && a.options.windowed();
  return {empty_in_rows(q, dtype),
          fused || dtype == sums ? absent(q) : empty_in_rows(q, sums),
          per_query(),
          fused_rows(dtype != sums),
          fused_rows(a.options.windowed()),
          window ? per_query() : absent(q),
          window ? per_query() : absent(q)};
}

Gradients backward_shape(const AttentionArguments& a,
                         const Tensor& /*dy*/,
                         const Tensor& q,
                         const Tensor& k,
                         const Tensor& v,
                         const Tensor& /*y*/,
                         const Tensor& /*denominator*/,
                         const Tensor& /*rest*/,
                         const Tensor& /*pull*/,
                         const Tensor& /*maxima*/,
                         const Tensor& /*ties*/,
                         bool /*fused*/,
                         Needs needs) {
  const auto like = [&](Input i, const std::optional<Tensor>& x) {
    return needs[i] && x.has_value() ? empty_of(*x, x->sym_sizes(), x->scalar_type()) : absent(q);
  };
  return {like(kQ, q),
          like(kK, k),
          like(kV, v),
          like(kLayerQ, a.layer_q),
          like(kBiasQ, a.bias_q),
          like(kLayerK, a.layer_k),
          like(kBiasK, a.bias_k),
          like(kWindowFactors, a.window_factors)};
}

TORCH_LIBRARY_FRAGMENT(hedgerow, library) {
  define(library,
         "hybrid_attention(Tensor q, Tensor k, Tensor v, *, bool fp32_output=False, ",
         "Tensor");
  define(
      library, "hybrid_is_fused(Tensor q, Tensor k, Tensor v, *, bool input_gradients, ", "bool");
  define(library,
         "hybrid_attention_forward(Tensor q, Tensor k, Tensor v, bool fp32_output, bool fused, ",
         "(Tensor y, Tensor y_saved, Tensor denominator, Tensor rest, Tensor pull, Tensor maxima, "
         "Tensor ties)");
  define(
      library,
      "hybrid_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor y, Tensor "
      "denominator, Tensor rest, Tensor pull, Tensor maxima, Tensor ties, *, bool fused, bool[8] "
      "needs, ",
      "(Tensor dq, Tensor dk, Tensor dv, Tensor dlayer_q, Tensor dbias_q, Tensor dlayer_k, "
      "Tensor dbias_k, Tensor dwindow_factors)");
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("hybrid_attention", boxed<&attend>());
  library.impl("hybrid_is_fused", boxed<&is_fused>());
  library.impl("hybrid_attention_forward", boxed<&forward>());
  library.impl("hybrid_attention_backward", boxed<&backward>());
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("hybrid_attention", boxed<&attend_shape>());
  library.impl("hybrid_attention_forward", boxed<&forward_shape>());
  library.impl("hybrid_attention_backward", boxed<&backward_shape>());
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("hybrid_attention", torch::autograd::autogradNotImplementedFallback());
  library.impl("hybrid_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace hedgerow::kernels::ops
