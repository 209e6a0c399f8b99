// hedgerow::hybrid_attention, its two directions as operators of their own, and linear_share.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/hybrid_passes.hpp"
#include "kernels/ops/own_graph.hpp"
#include "kernels/ops/shapes.hpp"
#include "kernels/problem/checks.hpp"

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
  HybridOptions options = a.options();
  options.fp32_output = fp32_output;
  return options;
}

// fp64 in the chunked ATen backend, as anything else that no fused backend takes: T x T is for
// tests.
Backend backend_of(const AttentionArguments& a,
                   const Tensor& q,
                   const Tensor& k,
                   const Tensor& v,
                   bool fused,
                   bool input_gradients) {
  TORCH_CHECK(!fused || (q.is_cuda() && cuda::hybrid_backend() != nullptr),
              "hybrid attention: fused must be false for a tensor on ",
              q.device(),
              " in this build, found true; hybrid_attention chooses it");
  if (fused) {
    check_known(a, q, k, v);  // why_not reads sizes
    const std::string reason =
        cuda::hybrid_backend()->why_not(q, a.parameters(), a.options(), input_gradients);
    TORCH_CHECK(reason.empty(),
                "hybrid attention: fused must be false for this problem, found true: ",
                reason,
                "; hybrid_attention chooses it");
    return Backend::kCuda;
  }
  return q.scalar_type() == at::kDouble ? Backend::kAten : backend_for(q);
}

// The backward knows no cache.
void check_no_recall(const AttentionArguments& a) {
  TORCH_CHECK(a.recall_cache == 0,
              "hybrid attention: recall_cache must be 0 where a gradient is wanted, found ",
              a.recall_cache);
}

at::ScalarType output_dtype(const Tensor& q, bool fp32_output) {
  return fp32_output ? sum_dtype_of(q) : q.scalar_type();
}

// ---- kernels

Tensor attend(const AttentionArguments& a,
              const Tensor& q,
              const Tensor& k,
              const Tensor& v,
              bool fp32_output) {
  const HybridParameters parameters = a.parameters();
  const HybridOptions options = options_of(a, fp32_output);
  check_known(a, q, k, v);
  if (options.recall_cache > 0) return in_rows(hybrid_attention(q, k, v, parameters, options));
  const Backend backend =
      q.scalar_type() == at::kDouble
          ? Backend::kAten
          : hybrid_backend_for(q, parameters, options, /*input_gradients=*/false);
  const HybridProblem problem = make_hybrid_problem(q, k, v, parameters, options);
  return in_rows(hybrid_forward(backend, problem, false).y);
}

Forward forward(const AttentionArguments& a,
                const Tensor& q,
                const Tensor& k,
                const Tensor& v,
                bool fp32_output,
                bool fused) {
  check_no_recall(a);
  const Backend backend = backend_of(a, q, k, v, fused, /*input_gradients=*/false);
  const HybridForward out = hybrid_forward(
      backend, make_hybrid_problem(q, k, v, a.parameters(), options_of(a, fp32_output)), true);
  const bool own = out.y_saved.defined() && !out.y_saved.is_same(out.y);
  const auto saved = [&](cuda::Saved which) {
    return backend == Backend::kCuda ? or_absent(out.saved[which], q) : absent(q);
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
  const RecordingGuard recording;  // the ATen backend's maps walk a graph of their own
  const c10::NoGradGuard no_grad;
  HybridForward saved;
  saved.y_saved = y;
  saved.denominator = denominator;
  const bool input_gradients = needs[kQ] || needs[kK] || needs[kV];
  const Backend backend = backend_of(a, q, k, v, fused, input_gradients);
  if (backend == Backend::kCuda) {
    saved.saved = {undefined_if_empty(rest),
                   undefined_if_empty(pull),
                   undefined_if_empty(maxima),
                   undefined_if_empty(ties)};
  }
  const HybridGradients g =
      hybrid_backward(backend,
                      make_hybrid_problem(q, k, v, a.parameters(), a.options()),
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

Tensor share(const AttentionArguments& a, const Tensor& q, const Tensor& k) {
  return linear_share(q, k, a.parameters(), a.options()).contiguous();
}

// ---- shapes

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
  const at::ScalarType dtype = output_dtype(q, fp32_output), sums = sum_dtype_of(q);
  const auto per_query = [&] { return empty_of(q, q.sym_sizes().slice(0, 3), sums); };
  const auto fused_rows = [&](bool there) {
    return fused && there ? empty_of(q, q.sym_sizes(), q.scalar_type()) : absent(q);
  };
  const bool window = fused && a.windowed();
  return {empty_in_rows(q, dtype),
          fused || dtype == sums ? absent(q) : empty_in_rows(q, sums),
          per_query(),
          fused_rows(dtype != sums),
          fused_rows(a.windowed()),
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

Tensor share_shape(const AttentionArguments& a, const Tensor& q, const Tensor& k) {
  check_known(a, q, k, {});
  return empty_of(q, q.sym_sizes().slice(1, 1), sum_dtype_of(q));
}

// ---- autograd

// The tensors of one call in the order of Input; those that are not given are undefined.
torch::autograd::variable_list inputs_of(const AttentionArguments& a,
                                         const Tensor& q,
                                         const Tensor& k,
                                         const Tensor& v) {
  const HybridParameters p = a.parameters();
  return {q, k, v, p.q.layer, p.q.bias, p.k.layer, p.k.bias, p.window_factors};
}

class HybridFunction : public torch::autograd::Function<HybridFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const std::optional<Tensor>& q,
                        const std::optional<Tensor>& k,
                        const std::optional<Tensor>& v,
                        const std::optional<Tensor>& /*layer_q*/,
                        const std::optional<Tensor>& /*bias_q*/,
                        const std::optional<Tensor>& /*layer_k*/,
                        const std::optional<Tensor>& /*bias_k*/,
                        const std::optional<Tensor>& /*window_factors*/,
                        const AttentionArguments& a,
                        bool fp32_output,
                        bool fused) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, y_saved, denominator, rest, pull, maxima, ties] =
        AttentionOp<&ops::forward>::dispatch(
            "hedgerow::hybrid_attention_forward", a, *q, *k, *v, fp32_output, fused);
    torch::autograd::variable_list saved = inputs_of(a, *q, *k, *v);
    const bool own = output_dtype(*q, fp32_output) != sum_dtype_of(*q) && !fused;
    for (const Tensor& x : {own ? y_saved : y, denominator, rest, pull, maxima, ties}) {
      saved.push_back(x);
    }
    context->save_for_backward(saved);
    context->saved_data["fused"] = fused;
    context->saved_data["feature_map"] = a.feature_map;
    context->saved_data["negation"] = a.negation;
    context->saved_data["order"] = a.order;
    context->saved_data["temperature"] = a.temperature;
    context->saved_data["window"] = a.window;
    context->saved_data["window_size"] = a.window_size;
    context->saved_data["num_sinks"] = a.num_sinks;
    context->saved_data["linear_cap"] = a.linear_cap;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const AttentionArguments a = arguments_of(context, saved);
    Needs needs{};
    std::size_t edge = 0;  // only tensors that are there have one
    for (std::size_t i = 0; i < kNumInputs; ++i) {
      needs[i] = saved[i].defined() && context->needs_input_grad(edge++);
    }
    const Tensor* kept = &saved[kNumInputs];
    const Gradients gradients =
        AttentionOp<&ops::backward>::dispatch("hedgerow::hybrid_attention_backward",
                                              a,
                                              dy[0],
                                              saved[kQ],
                                              saved[kK],
                                              saved[kV],
                                              kept[0],
                                              kept[1],
                                              kept[2],
                                              kept[3],
                                              kept[4],
                                              kept[5],
                                              context->saved_data["fused"].toBool(),
                                              needs);
    torch::autograd::variable_list out = std::apply(
        [](auto&... each) { return torch::autograd::variable_list{each...}; }, gradients);
    for (std::size_t i = 0; i < kNumInputs; ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    out.resize(kNumInputs + 3);  // none for the arguments and the two flags
    return out;
  }

 private:
  static AttentionArguments arguments_of(torch::autograd::AutogradContext* context,
                                         const torch::autograd::variable_list& saved) {
    const auto given = [&](Input i) {
      return saved[i].defined() ? std::optional<Tensor>(saved[i]) : std::nullopt;
    };
    return {given(kLayerQ),
            given(kBiasQ),
            given(kLayerK),
            given(kBiasK),
            given(kWindowFactors),
            context->saved_data["feature_map"].toStringRef(),
            context->saved_data["negation"].toBool(),
            context->saved_data["order"].toInt(),
            context->saved_data["window"].toStringRef(),
            context->saved_data["window_size"].toInt(),
            context->saved_data["num_sinks"].toInt(),
            0,
            context->saved_data["temperature"].toDouble(),
            context->saved_data["linear_cap"].toInt()};
  }
};

Tensor attend_autograd(const AttentionArguments& a,
                       const Tensor& q,
                       const Tensor& k,
                       const Tensor& v,
                       bool fp32_output) {
  if (!any_requires_grad(inputs_of(a, q, k, v))) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return AttentionOp<&attend>::dispatch("hedgerow::hybrid_attention", a, q, k, v, fp32_output);
  }
  check_known(a, q, k, v);
  check_no_recall(a);
  // While tracing with symbolic sizes nothing can be asked of them; then the ATen backend it is.
  const bool fused =
      q.is_cuda() && sizes_are_known(inputs_of(a, q, k, v)) &&
      hybrid_backend_for(
          q, a.parameters(), options_of(a, fp32_output), any_requires_grad({q, k, v})) ==
          Backend::kCuda;
  return HybridFunction::apply(std::optional<Tensor>(q),
                               std::optional<Tensor>(k),
                               std::optional<Tensor>(v),
                               a.layer_q,
                               a.bias_q,
                               a.layer_k,
                               a.bias_k,
                               a.window_factors,
                               a,
                               fp32_output,
                               fused);
}

Tensor share_autograd(const AttentionArguments& a, const Tensor& q, const Tensor& k) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return AttentionOp<&share>::dispatch("hedgerow::linear_share", a, q, k);
}

TORCH_LIBRARY_FRAGMENT(hedgerow, library) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  library.def(
      "hybrid_attention(Tensor q, Tensor k, Tensor v, *, bool "
      "fp32_output=False, " HEDGEROW_ATTENTION_SCHEMA ") -> Tensor",
      tags);
  library.def(
      "hybrid_attention_forward(Tensor q, Tensor k, Tensor v, *, bool fp32_output, bool "
      "fused, " HEDGEROW_ATTENTION_SCHEMA
      ") -> (Tensor y, Tensor y_saved, Tensor denominator, Tensor rest, Tensor pull, Tensor "
      "maxima, Tensor ties)",
      tags);
  library.def(
      "hybrid_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor y, Tensor "
      "denominator, Tensor rest, Tensor pull, Tensor maxima, Tensor ties, *, bool fused, bool[8] "
      "needs, " HEDGEROW_ATTENTION_SCHEMA
      ") -> (Tensor dq, Tensor dk, Tensor dv, Tensor dlayer_q, Tensor dbias_q, Tensor dlayer_k, "
      "Tensor dbias_k, Tensor dwindow_factors)",
      tags);
  library.def("linear_share(Tensor q, Tensor k, *, " HEDGEROW_ATTENTION_SCHEMA ") -> Tensor", tags);
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("hybrid_attention", TORCH_FN(AttentionOp<&attend>::call));
  library.impl("hybrid_attention_forward", TORCH_FN(AttentionOp<&forward>::call));
  library.impl("hybrid_attention_backward", TORCH_FN(AttentionOp<&backward>::call));
  library.impl("linear_share", TORCH_FN(AttentionOp<&share>::call));
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("hybrid_attention", TORCH_FN(AttentionOp<&attend_shape>::call));
  library.impl("hybrid_attention_forward", TORCH_FN(AttentionOp<&forward_shape>::call));
  library.impl("hybrid_attention_backward", TORCH_FN(AttentionOp<&backward_shape>::call));
  library.impl("linear_share", TORCH_FN(AttentionOp<&share_shape>::call));
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("hybrid_attention", TORCH_FN(AttentionOp<&attend_autograd>::call));
  library.impl("linear_share", TORCH_FN(AttentionOp<&share_autograd>::call));
  library.impl("hybrid_attention_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("hybrid_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace hedgerow::kernels::ops
