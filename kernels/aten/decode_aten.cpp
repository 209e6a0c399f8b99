// Rows differ in what they do at a step (one evicts a key, one flushes a chunk, one does neither),
// so every row does the work of all and masks decide what counts. For a terraced window that is the
// map of W keys a step, W (f + F) D multiply-adds a head beside the step's (2 W + F) D: the price
// of not asking the device which rows flush.
#include "kernels/aten/decode_aten.hpp"

#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "kernels/aten/chunks_aten.hpp"
#include "kernels/problem/hybrid_parameters.hpp"
#include "kernels/problem/recall_cache.hpp"

namespace hedgerow::kernels::aten {
namespace {

// Tokens before the window of a row's last token: those that (S, z) holds after `tokens` of them.
at::Tensor begin_after(const at::Tensor& tokens, const HybridOptions& options) {
  return window_begins(tokens - 1, options);
}

// The token that each slot of the ring holds after `tokens` of them: [B, C], negative where none
// was written yet.
at::Tensor tokens_of_slots(const at::Tensor& tokens, std::int64_t slots) {
  const at::Tensor last = (tokens - 1).unsqueeze(1);
  return last - (last - at::arange(slots, tokens.options())).remainder(slots);
}

// (S, z) += phi_k [v, 1] over the tokens that `counts` [B, n] marks; k, v [B, G, n, D]. What is not
// marked may hold anything, NaN too.
void join_state(const at::Tensor& k,
                const at::Tensor& v,
                const at::Tensor& counts,
                const HybridParameters& parameters,
                const HybridOptions& options,
                const DecodeState& state) {
  const std::int64_t U = state.kv_state.size(1), G = k.size(1), F = state.kv_state.size(2);
  const at::Tensor ignored = counts.bitwise_not().unsqueeze(1).unsqueeze(-1);
  const at::Tensor phi =
      apply_feature_map(
          k.masked_fill(ignored, 0.0), parameters.k, options, U, FeatureMapRole::kKey)
          .masked_fill(ignored, 0.0);
  const at::Tensor values = v.masked_fill(ignored, 0.0).to(at::kFloat);
  // Key maps that share values lie below each other: [B, G, U / G F, n].
  const at::Tensor grouped = phi.transpose(-1, -2).unflatten(1, {G, U / G}).flatten(2, 3);
  state.kv_state.add_(at::matmul(grouped, values).unflatten(2, {U / G, F}).flatten(1, 2));
  state.k_state.add_(phi.sum(2).reshape(state.k_state.sizes()));
}

// y and the sum of weights of the window's keys, [B, G, R, D] and [B, G, R, 1], without the gate.
std::pair<at::Tensor, at::Tensor> attend_window(const at::Tensor& q,
                                                const at::Tensor& tokens,
                                                const HybridOptions& options,
                                                const DecodeState& state) {
  const at::Tensor held = tokens_of_slots(tokens, state.window_k.size(2));
  const at::Tensor begins = begin_after(tokens, options).unsqueeze(1);
  at::Tensor outside = held.lt(begins);
  at::Tensor keys = state.window_k.to(at::kFloat), values = state.window_v.to(at::kFloat);
  if (options.num_sinks > 0) {
    // The ring has those that are in the window yet.
    const at::Tensor sinks = at::arange(options.num_sinks, tokens.options());
    outside = at::cat({outside, sinks.ge(begins)}, 1);
    keys = at::cat({keys, state.sink_k.to(at::kFloat)}, 2);
    values = at::cat({values, state.sink_v.to(at::kFloat)}, 2);
  }
  at::Tensor mask = outside.unsqueeze(1).unsqueeze(1);
  if (options.recall_cache > 0) {
    // Those that are in the window yet count there.
    const at::Tensor& held_exactly = state.recall_positions;
    const at::Tensor counts =
        held_exactly.ge(0) & held_exactly.lt(begins.reshape({begins.size(0), 1, 1}));
    mask = at::cat({mask.expand({-1, keys.size(1), 1, -1}), counts.bitwise_not().unsqueeze(2)}, 3);
    keys = at::cat({keys, state.recall_k.to(at::kFloat)}, 2);
    values = at::cat({values, state.recall_v.to(at::kFloat)}, 2);
  }
  at::Tensor weights = at::matmul(q, keys.transpose(-1, -2)).masked_fill_(mask, -INFINITY);
  weights.sub_(weights.amax(-1, true)).exp_();
  return {at::matmul(weights, values), weights.sum(-1, true)};
}

}  // namespace

void prefill_state_aten(const at::Tensor& k,
                        const at::Tensor& v,
                        const HybridParameters& parameters,
                        const HybridOptions& options,
                        const DecodeState& state) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& lengths = state.positions;
  const at::Tensor begins = begin_after(lengths, options).unsqueeze(1);
  const at::Tensor tokens = at::arange(k.size(2), lengths.options());
  if (options.recall_cache > 0) {
    prefill_recalled(k, v, parameters, options, state);
  } else {
    join_state(k, v, tokens.lt(begins) & tokens.ge(options.num_sinks), parameters, options, state);
  }
  if (options.window == WindowLayout::kNone) {
    return;
  }
  const at::Tensor held = tokens_of_slots(lengths, state.window_k.size(2));
  const at::Tensor empty = held.lt(begins).unsqueeze(1).unsqueeze(-1);
  const at::Tensor index =
      held.clamp_min(0).unsqueeze(1).unsqueeze(-1).expand(state.window_k.sizes());
  if (const std::int64_t sinks = std::min(options.num_sinks, k.size(2)); sinks > 0) {
    state.sink_k.narrow(2, 0, sinks).copy_(k.narrow(2, 0, sinks));
    state.sink_v.narrow(2, 0, sinks).copy_(v.narrow(2, 0, sinks));
  }
  state.window_k.copy_(k.gather(2, index).masked_fill_(empty, 0.0));
  state.window_v.copy_(v.gather(2, index).masked_fill_(empty, 0.0));
}

at::Tensor decode_step_aten(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            const DecodeState& state) {
  const c10::NoGradGuard no_grad;
  const std::int64_t B = q.size(0), H = q.size(1), D = q.size(2), G = k.size(1);
  const at::Tensor seen = state.positions, tokens = seen + 1;
  const bool windowed = options.window != WindowLayout::kNone;
  if (windowed) {
    // What leaves the window is read before its slot is written again: a key at most where the
    // window slides, else a chunk, which lies where the new token's chunk will.
    const std::int64_t slots = state.window_k.size(2),
                       leaving = options.window == WindowLayout::kSliding ? 1 : options.window_size;
    const at::Tensor rows = at::arange(B, seen.options()).unsqueeze(1);
    const at::Tensor from =
        begin_after(seen.clamp_min(1), options).unsqueeze(1) + at::arange(leaving, seen.options());
    const at::Tensor slot = from.remainder(slots);
    const auto read = [&](const at::Tensor& ring) {
      return ring.transpose(1, 2).index({rows, slot}).transpose(1, 2);
    };
    const at::Tensor leaves =
        from.lt(begin_after(tokens, options).unsqueeze(1)) & from.ge(options.num_sinks);
    if (options.recall_cache > 0) {
      leave_window(parameters, options, state);
    } else {
      join_state(read(state.window_k), read(state.window_v), leaves, parameters, options, state);
    }
    const at::Tensor target = seen.remainder(slots).unsqueeze(1);
    state.window_k.transpose(1, 2).index_put_({rows, target}, k.unsqueeze(1));
    state.window_v.transpose(1, 2).index_put_({rows, target}, v.unsqueeze(1));
    if (options.num_sinks > 0) {
      const at::Tensor is_sink = at::arange(options.num_sinks, seen.options())
                                     .eq(seen.unsqueeze(1))
                                     .unsqueeze(1)
                                     .unsqueeze(-1);
      const auto write = [&is_sink](const at::Tensor& sinks, const at::Tensor& token) {
        const at::Tensor everywhere = token.unsqueeze(2).expand_as(sinks);
        sinks.masked_fill_(is_sink, 0.0).add_(everywhere.masked_fill(is_sink.bitwise_not(), 0.0));
      };
      write(state.sink_k, k);
      write(state.sink_v, v);
    }
  } else {
    const at::Tensor all = at::ones({B, 1}, seen.options().dtype(at::kBool));
    join_state(k.unsqueeze(2), v.unsqueeze(2), all, parameters, options, state);
  }

  const at::Tensor phi = apply_feature_map(q.unsqueeze(2),
                                           parameters.q,
                                           options,
                                           H,
                                           FeatureMapRole::kQuery);  // [B, H, 1, F]
  // Query heads of one state lie below each other: [B, U, H / U, F].
  const std::int64_t U = state.kv_state.size(1);
  const at::Tensor rows = phi.squeeze(2).unflatten(1, {U, H / U});
  at::Tensor y = at::matmul(rows, state.kv_state).flatten(1, 2);
  at::Tensor sum = (rows * state.k_state.reshape({B, U, 1, -1})).sum(-1, true).flatten(1, 2);
  if (windowed) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(D));
    const at::Tensor queries = q.to(at::kFloat).mul(scale).unflatten(1, {G, H / G});
    const auto [window_y, window_sum] = attend_window(queries, tokens, options, state);
    at::Tensor gate = at::sigmoid(parameters.window_factors.to(at::kFloat)).reshape({H, 1});
    const at::Tensor gains = window_gains(seen, options, at::kFloat);
    if (gains.defined()) gate = gate * gains.reshape({B, 1, 1});
    y = y + gate * window_y.flatten(1, 2);
    sum = sum + gate * window_sum.flatten(1, 2);
  } else {
    sum = sum + kLinearEpsilon;
  }
  state.positions.add_(1);
  return (y / sum).to(q.scalar_type());
}

}  // namespace hedgerow::kernels::aten
