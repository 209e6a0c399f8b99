// hedgerow::prefill_state and decode_step: the state of recurrent inference as five tensors, two
// more with sinks and three more with a recall cache, which a step advances in place. No autograd.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <vector>

#include "kernels/decode.hpp"
#include "kernels/ops/shapes.hpp"
#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels::ops {
namespace {

using at::Tensor;
// In the order of DecodeState. A list, so that a state without sinks stays five tensors, as the
// files of exports made before there were sinks take it apart.
using State = std::vector<Tensor>;

// Whether a parameter tells the heads of a state.
bool tells_heads(const AttentionArguments& a) {
  return a.layer_k.has_value() || a.bias_k.has_value() || a.window_factors.has_value();
}

void check_num_heads(const AttentionArguments& a,
                     std::optional<std::int64_t> num_heads,
                     std::int64_t kv_heads) {
  if (!num_heads.has_value()) return;
  const std::int64_t told = num_query_heads(a.parameters(), 0);
  TORCH_CHECK(told > 0 ? *num_heads == told : *num_heads >= 1 && *num_heads % kv_heads == 0,
              "decode: num_heads must be the ",
              told > 0 ? told : kv_heads,
              " heads of the parameters, or without any a multiple of k's, found ",
              *num_heads);
}

// A state of query heads that no parameter tells: they share what their kv head has seen.
void spread(const AttentionArguments& a,
            DecodeState& state,
            std::optional<std::int64_t> num_heads) {
  const std::int64_t held = state.kv_state.size(1);
  check_num_heads(a, num_heads, state.window_k.size(1));
  if (!num_heads.has_value() || tells_heads(a)) {
    return;
  }
  state.kv_state = state.kv_state.repeat_interleave(*num_heads / held, 1);
  state.k_state = state.k_state.repeat_interleave(*num_heads / held, 1);
}

State prefill(const AttentionArguments& a,
              const Tensor& k,
              const Tensor& v,
              const Tensor& lengths,
              std::optional<std::int64_t> num_heads) {
  const c10::NoGradGuard no_grad;
  DecodeState state = prefill_state(k, v, lengths, a.parameters(), a.options);
  spread(a, state, num_heads);
  State out{state.kv_state, state.k_state, state.window_k, state.window_v, state.positions};
  if (a.options.num_sinks > 0) {
    out.insert(out.end(), {state.sink_k, state.sink_v});
  }
  if (a.options.recall_cache > 0) {
    out.insert(out.end(), {state.recall_k, state.recall_v, state.recall_positions});
  }
  return out;
}

c10::SymInt heads_of(const AttentionArguments& a,
                     const Tensor& k,
                     std::optional<std::int64_t> num_heads) {
  if (a.layer_k.has_value()) return a.layer_k->sym_size(0);
  if (a.bias_k.has_value()) return a.bias_k->sym_size(0);
  if (a.window_factors.has_value()) return a.window_factors->sym_numel();
  return num_heads.has_value() ? c10::SymInt(*num_heads) : k.sym_size(1);
}

// What prefill_state checks, but for what only values tell.
void check_known_prefill(const AttentionArguments& a,
                         const Tensor& k,
                         const Tensor& v,
                         const Tensor& lengths,
                         std::optional<std::int64_t> num_heads) {
  const HybridParameters p = a.parameters();
  if (!sizes_are_known({k, v, lengths, p.q.layer, p.q.bias, p.k.layer, p.k.bias, p.window_factors}))
    return;
  check_prefill(k, v, lengths);
  const std::int64_t queries = num_query_heads(p, num_heads_of(p, k.size(1)));
  check_parameters(p, a.options, queries, k.size(1), k.size(3), k.device());
  check_num_heads(a, num_heads, k.size(1));
}

State prefill_shape(const AttentionArguments& a,
                    const Tensor& k,
                    const Tensor& v,
                    const Tensor& lengths,
                    std::optional<std::int64_t> num_heads) {
  const HybridOptions& options = a.options;
  check_known_prefill(a, k, v, lengths, num_heads);
  const c10::SymInt B = k.sym_size(0), U = heads_of(a, k, num_heads), D = k.sym_size(3);
  const c10::SymInt F = num_features(a.layer_k, options, D);
  const auto raw = [&](std::int64_t tokens) {
    return empty_of(k, {B, k.sym_size(1), tokens, D}, k.scalar_type());
  };
  State out{empty_of(k, {B, U, F, D}, at::kFloat),
            empty_of(k, {B, U, F}, at::kFloat),
            raw(ring_slots(options)),
            raw(ring_slots(options)),
            empty_of(k, {B}, at::kLong)};
  if (a.options.num_sinks > 0) {
    out.insert(out.end(), {raw(a.options.num_sinks), raw(a.options.num_sinks)});
  }
  if (a.options.recall_cache > 0) {
    out.insert(out.end(),
               {raw(a.options.recall_cache),
                raw(a.options.recall_cache),
                empty_of(k, {B, k.sym_size(1), a.options.recall_cache}, at::kLong)});
  }
  return out;
}

// What a state may have beside its five tensors.
struct Extras {
  std::optional<Tensor> sink_k, sink_v, recall_k, recall_v, recall_positions;
};

// decode_step would make a state of other heads anew, and read none of sinks and cache that the
// options do not have; these tensors are the caller's.
void check_caller_state(const AttentionArguments& a,
                        const Tensor& q,
                        const Tensor& kv_state,
                        const Tensor& k_state,
                        const Tensor& positions,
                        const Extras& extras) {
  if (q.dim() == 3 && kv_state.dim() == 4) {
    const std::int64_t heads = num_key_heads(a.parameters(), q.size(1));
    TORCH_CHECK(kv_state.size(1) == heads,
                "decode: kv_state must have ",
                heads == q.size(1) ? "q's " : "the key map's ",
                heads,
                " heads, found ",
                kv_state.size(1),
                tells_heads(a) ? "" : "; give prefill_state num_heads");
  }
  TORCH_CHECK(
      a.options.num_sinks != 0 || (!extras.sink_k.has_value() && !extras.sink_v.has_value()),
      "decode: num_sinks must be that of the state, which has sinks, found 0");
  TORCH_CHECK(a.options.recall_cache != 0 ||
                  (!extras.recall_k.has_value() && !extras.recall_v.has_value() &&
                   !extras.recall_positions.has_value()),
              "decode: recall_cache must be that of the state, which has one, found 0");
  TORCH_CHECK(kv_state.scalar_type() == at::kFloat && k_state.scalar_type() == at::kFloat &&
                  positions.scalar_type() == at::kLong,
              "decode: kv_state and k_state must be float32 and positions int64, found ",
              kv_state.scalar_type(),
              ", ",
              k_state.scalar_type(),
              " and ",
              positions.scalar_type());
}

Tensor step(const AttentionArguments& a,
            const Tensor& q,
            const Tensor& k,
            const Tensor& v,
            const Tensor& kv_state,
            const Tensor& k_state,
            const Tensor& window_k,
            const Tensor& window_v,
            const Tensor& positions,
            const std::optional<Tensor>& sink_k,
            const std::optional<Tensor>& sink_v,
            const std::optional<Tensor>& recall_k,
            const std::optional<Tensor>& recall_v,
            const std::optional<Tensor>& recall_positions) {
  const c10::NoGradGuard no_grad;
  check_caller_state(
      a, q, kv_state, k_state, positions, {sink_k, sink_v, recall_k, recall_v, recall_positions});
  DecodeState state{kv_state,
                    k_state,
                    window_k,
                    window_v,
                    positions,
                    sink_k.value_or(Tensor()),
                    sink_v.value_or(Tensor()),
                    recall_k.value_or(Tensor()),
                    recall_v.value_or(Tensor()),
                    recall_positions.value_or(Tensor())};
  const Tensor y = decode_step(q, k, v, state, a.parameters(), a.options).contiguous();
  // The kernel writes through pointers: who saved the state for a backward is told here.
  for (const Tensor& x : {kv_state,
                          k_state,
                          window_k,
                          window_v,
                          positions,
                          state.sink_k,
                          state.sink_v,
                          state.recall_k,
                          state.recall_v,
                          state.recall_positions}) {
    if (x.defined() && !x.is_inference()) x.unsafeGetTensorImpl()->bump_version();
  }
  return y;
}

Tensor step_shape(const AttentionArguments& a,
                  const Tensor& q,
                  const Tensor& k,
                  const Tensor& v,
                  const Tensor& kv_state,
                  const Tensor& k_state,
                  const Tensor& /*window_k*/,
                  const Tensor& /*window_v*/,
                  const Tensor& positions,
                  const std::optional<Tensor>& sink_k,
                  const std::optional<Tensor>& sink_v,
                  const std::optional<Tensor>& recall_k,
                  const std::optional<Tensor>& recall_v,
                  const std::optional<Tensor>& recall_positions) {
  const HybridParameters p = a.parameters();
  if (sizes_are_known({q, k, v, kv_state, p.k.layer, p.k.bias})) {
    check_caller_state(
        a, q, kv_state, k_state, positions, {sink_k, sink_v, recall_k, recall_v, recall_positions});
    check_token(q, k, v);
    check_known(a, q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2));
  }
  return empty_of(q, q.sym_sizes(), q.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(hedgerow, library) {
  define(library,
         "prefill_state(Tensor k, Tensor v, Tensor lengths, *, int? num_heads=None, ",
         "Tensor[]");
  define(
      library,
      "decode_step(Tensor q, Tensor k, Tensor v, Tensor(a!) kv_state, Tensor(b!) k_state, "
      "Tensor(c!) window_k, Tensor(d!) window_v, Tensor(e!) positions, Tensor(f!)? sink_k=None, "
      "Tensor(g!)? sink_v=None, Tensor(h!)? recall_k=None, Tensor(i!)? recall_v=None, Tensor(j!)? "
      "recall_positions=None, *, ",
      "Tensor");
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("prefill_state", boxed<&prefill>());
  library.impl("decode_step", boxed<&step>());
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("prefill_state", boxed<&prefill_shape>());
  library.impl("decode_step", boxed<&step_shape>());
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("prefill_state", torch::CppFunction::makeFallthrough());
  library.impl("decode_step", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace hedgerow::kernels::ops
