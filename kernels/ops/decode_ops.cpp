// hedgerow::prefill_state and decode_step: the state of recurrent inference as five tensors, which
// a step advances in place. No autograd.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/checks.hpp"
#include "kernels/decode.hpp"
#include "kernels/ops/shapes.hpp"

namespace hedgerow::kernels::ops {
namespace {

using at::Tensor;
// kv_state, k_state, window_k, window_v, positions, as in DecodeState.
using State = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// `held` heads of a state, of `kv_heads` in its windows.
void check_num_heads(std::optional<std::int64_t> num_heads,
                     std::int64_t held,
                     std::int64_t kv_heads) {
  TORCH_CHECK(!num_heads.has_value() || *num_heads == held ||
                  (*num_heads >= held && *num_heads % held == 0 && held == kv_heads),
              "decode: num_heads must be the ",
              held,
              " heads of the parameters, or without any a multiple of k's, found ",
              *num_heads);
}

// A state of query heads that no parameter tells: they share what their kv head has seen.
void spread(DecodeState& state, std::optional<std::int64_t> num_heads) {
  const std::int64_t held = state.kv_state.size(1);
  if (!num_heads.has_value() || *num_heads == held) {
    return;
  }
  check_num_heads(num_heads, held, state.window_k.size(1));
  state.kv_state = state.kv_state.repeat_interleave(*num_heads / held, 1);
  state.k_state = state.k_state.repeat_interleave(*num_heads / held, 1);
}

State prefill(const AttentionArguments& a,
              const Tensor& k,
              const Tensor& v,
              const Tensor& lengths,
              std::optional<std::int64_t> num_heads) {
  const c10::NoGradGuard no_grad;
  DecodeState state = prefill_state(k, v, lengths, a.parameters(), a.options());
  spread(state, num_heads);
  return {state.kv_state, state.k_state, state.window_k, state.window_v, state.positions};
}

c10::SymInt heads_of(const AttentionArguments& a,
                     const Tensor& k,
                     std::optional<std::int64_t> num_heads) {
  if (num_heads.has_value()) return *num_heads;
  if (a.layer_k.has_value()) return a.layer_k->sym_size(0);
  return a.window_factors.has_value() ? a.window_factors->sym_numel() : k.sym_size(1);
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
  const std::int64_t held = num_heads_of(p, k.size(1));
  check_parameters(p, a.options(), held, k.size(1), k.size(3), k.device());
  check_num_heads(num_heads, held, k.size(1));
}

State prefill_shape(const AttentionArguments& a,
                    const Tensor& k,
                    const Tensor& v,
                    const Tensor& lengths,
                    std::optional<std::int64_t> num_heads) {
  const HybridOptions options = a.options();
  check_known_prefill(a, k, v, lengths, num_heads);
  const c10::SymInt B = k.sym_size(0), H = heads_of(a, k, num_heads), D = k.sym_size(3);
  const c10::SymInt F = num_features(a.layer_k, options.feature_map, D);
  const auto ring = [&] {
    return empty_of(k, {B, k.sym_size(1), ring_slots(options), D}, k.scalar_type());
  };
  return {empty_of(k, {B, H, F, D}, at::kFloat),
          empty_of(k, {B, H, F}, at::kFloat),
          ring(),
          ring(),
          empty_of(k, {B}, at::kLong)};
}

State prefill_autograd(const AttentionArguments& a,
                       const Tensor& k,
                       const Tensor& v,
                       const Tensor& lengths,
                       std::optional<std::int64_t> num_heads) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return AttentionOp<&prefill>::dispatch("hedgerow::prefill_state", a, k, v, lengths, num_heads);
}

// decode_step would make a state of other heads anew; these tensors are the caller's.
void check_caller_state(const Tensor& q,
                        const Tensor& kv_state,
                        const Tensor& k_state,
                        const Tensor& positions) {
  TORCH_CHECK(q.dim() != 3 || kv_state.dim() != 4 || kv_state.size(1) == q.size(1),
              "decode: kv_state must have q's ",
              q.dim() == 3 ? q.size(1) : 0,
              " heads, found ",
              kv_state.dim() == 4 ? kv_state.size(1) : 0,
              "; give prefill_state num_heads");
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
            const Tensor& positions) {
  const c10::NoGradGuard no_grad;
  check_caller_state(q, kv_state, k_state, positions);
  DecodeState state{kv_state, k_state, window_k, window_v, positions};
  return decode_step(q, k, v, state, a.parameters(), a.options()).contiguous();
}

Tensor step_shape(const AttentionArguments& a,
                  const Tensor& q,
                  const Tensor& k,
                  const Tensor& v,
                  const Tensor& kv_state,
                  const Tensor& k_state,
                  const Tensor& /*window_k*/,
                  const Tensor& /*window_v*/,
                  const Tensor& positions) {
  if (sizes_are_known({q, k, v, kv_state})) {
    check_caller_state(q, kv_state, k_state, positions);
    check_token(q, k, v);
    check_known(a, q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2));
  }
  static_cast<void>(a.options());  // names are checked whatever the sizes are
  return empty_of(q, q.sym_sizes(), q.scalar_type());
}

// The kernel writes through pointers: who saved the state for a backward is told here.
Tensor step_autograd(const AttentionArguments& a,
                     const Tensor& q,
                     const Tensor& k,
                     const Tensor& v,
                     const Tensor& kv_state,
                     const Tensor& k_state,
                     const Tensor& window_k,
                     const Tensor& window_v,
                     const Tensor& positions) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Tensor y = AttentionOp<&step>::dispatch(
      "hedgerow::decode_step", a, q, k, v, kv_state, k_state, window_k, window_v, positions);
  for (const Tensor& x : {kv_state, k_state, window_k, window_v, positions}) {
    torch::autograd::impl::bump_version(x);
  }
  return y;
}

TORCH_LIBRARY_FRAGMENT(hedgerow, library) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  library.def(
      "prefill_state(Tensor k, Tensor v, Tensor lengths, *, int? "
      "num_heads=None, " HEDGEROW_ATTENTION_SCHEMA
      ") -> (Tensor kv_state, Tensor k_state, Tensor window_k, Tensor window_v, Tensor positions)",
      tags);
  library.def(
      "decode_step(Tensor q, Tensor k, Tensor v, Tensor(a!) kv_state, Tensor(b!) k_state, "
      "Tensor(c!) window_k, Tensor(d!) window_v, Tensor(e!) positions, "
      "*, " HEDGEROW_ATTENTION_SCHEMA ") -> Tensor",
      tags);
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("prefill_state", TORCH_FN(AttentionOp<&prefill>::call));
  library.impl("decode_step", TORCH_FN(AttentionOp<&step>::call));
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("prefill_state", TORCH_FN(AttentionOp<&prefill_shape>::call));
  library.impl("decode_step", TORCH_FN(AttentionOp<&step_shape>::call));
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("prefill_state", TORCH_FN(AttentionOp<&prefill_autograd>::call));
  library.impl("decode_step", TORCH_FN(AttentionOp<&step_autograd>::call));
}

}  // namespace
}  // namespace hedgerow::kernels::ops
