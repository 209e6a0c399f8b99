#include "kernels/problem/recall_cache.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels {
namespace {

at::ScalarType sums_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// [B, U, n, F] -> [B, G, U / G, n, F].
at::Tensor by_kv_head(const at::Tensor& x, std::int64_t num_kv_heads) {
  return x.unflatten(1, {num_kv_heads, x.size(1) / num_kv_heads});
}

at::Tensor key_features(const at::Tensor& k,
                        std::int64_t num_key_heads,
                        const HybridParameters& parameters,
                        const HybridOptions& options) {
  return apply_feature_map(k, parameters.k, options, num_key_heads, FeatureMapRole::kKey);
}

// (S, z) plus phi [v, 1] of the marked tokens. phi [B, U, n, F]; v [B, G, n, D]; counts [B, G, n].
void add_to_state(RecallState& state,
                  const at::Tensor& phi,
                  const at::Tensor& v,
                  const at::Tensor& counts) {
  const std::int64_t G = v.size(1);
  const at::Tensor marked =
      by_kv_head(phi, G) * counts.unsqueeze(2).unsqueeze(-1).to(phi.scalar_type());
  const at::Tensor values =
      v.masked_fill(counts.bitwise_not().unsqueeze(-1), 0.0).to(phi.scalar_type()).unsqueeze(2);
  state.kv_state = state.kv_state + at::matmul(marked.transpose(-1, -2), values).flatten(1, 2);
  state.k_state = state.k_state + marked.sum(3).flatten(1, 2);
}

// r_j [B, G, n]. No autograd.
at::Tensor residuals(const RecallState& state, const at::Tensor& phi, const at::Tensor& v) {
  const c10::NoGradGuard no_grad;
  const std::int64_t G = v.size(1);
  const at::Tensor mass =
      at::matmul(phi, state.k_state.unsqueeze(-1)).clamp_min(kLeastRecallMass);  // [B, U, n, 1]
  const at::Tensor recalled = by_kv_head(at::matmul(phi, state.kv_state) / mass, G);
  const at::Tensor missed = v.to(phi.scalar_type()).unsqueeze(2) - recalled;
  // A score that is no number has no order: its key counts as recalled worst of all.
  const at::Tensor score = (missed * missed).sum(-1).sum(2);
  return score.masked_fill(score.isnan(), std::numeric_limits<double>::infinity());
}

at::Tensor entries_at(const at::Tensor& x, const at::Tensor& index) {
  return x.gather(2, index.unsqueeze(-1).expand({-1, -1, -1, x.size(3)}));
}

}  // namespace

RecallState make_recall_state(std::int64_t batch,
                              std::int64_t num_key_heads,
                              std::int64_t num_kv_heads,
                              std::int64_t head_dim,
                              std::int64_t feature_dim,
                              const at::Tensor& like,
                              const HybridOptions& options) {
  const at::TensorOptions sums = like.options().dtype(sums_dtype(like));
  const std::int64_t N = options.recall_cache;
  RecallState state;
  state.kv_state = at::zeros({batch, num_key_heads, feature_dim, head_dim}, sums);
  state.k_state = at::zeros({batch, num_key_heads, feature_dim}, sums);
  state.k = at::zeros({batch, num_kv_heads, N, head_dim}, like.options());
  state.v = at::zeros_like(state.k);
  state.positions = at::full({batch, num_kv_heads, N}, -1, like.options().dtype(at::kLong));
  return state;
}

void fold_keys(RecallState& state,
               const at::Tensor& k,
               const at::Tensor& v,
               const at::Tensor& counts,
               const HybridParameters& parameters,
               const HybridOptions& options) {
  const at::Tensor ignored = counts.bitwise_not().unsqueeze(-1);
  const at::Tensor keys = k.masked_fill(ignored, 0.0), values = v.masked_fill(ignored, 0.0);
  add_to_state(
      state, key_features(keys, state.kv_state.size(1), parameters, options), values, counts);
}

void choose_recalled(RecallState& state,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const at::Tensor& first,
                     const at::Tensor& active,
                     bool folds_chunk,
                     const HybridParameters& parameters,
                     const HybridOptions& options) {
  const std::int64_t B = k.size(0), G = k.size(1), W = k.size(2), N = options.recall_cache;
  const at::Tensor row = active.reshape({B, 1, 1});
  const at::Tensor tokens = first.reshape({B, 1, 1}) + at::arange(W, first.options());
  const at::Tensor position = at::cat({state.positions, tokens.expand({B, G, W})}, 2);
  // Sinks are exact for ever, and so no candidates; in the cache there are none.
  const at::Tensor is_candidate = position.ge(options.num_sinks) & row;
  const at::Tensor ignored = is_candidate.bitwise_not().unsqueeze(-1);
  const at::Tensor keys = at::cat({state.k, k}, 2).masked_fill(ignored, 0.0);
  const at::Tensor values = at::cat({state.v, v}, 2).masked_fill(ignored, 0.0);
  const at::Tensor phi = key_features(keys, state.kv_state.size(1), parameters, options);
  const at::Tensor score =
      residuals(state, phi, values)
          .masked_fill(is_candidate.bitwise_not(), -std::numeric_limits<double>::infinity());
  // Candidates lie by position, and equal scores keep that order.
  const at::Tensor order = std::get<1>(at::sort(score, /*stable=*/true, 2, /*descending=*/true));
  at::Tensor index = order.narrow(2, 0, N);
  const at::Tensor is_kept = at::zeros_like(is_candidate).scatter(2, index, true) & is_candidate;
  // By position again; what is no candidate comes first.
  const at::Tensor kept = position.masked_fill(is_candidate.bitwise_not(), -1).gather(2, index);
  const at::Tensor by_position = std::get<1>(at::sort(kept, /*stable=*/true, 2, false));
  index = index.gather(2, by_position);
  at::Tensor dropped = is_candidate & is_kept.bitwise_not();
  if (!folds_chunk) {
    dropped = at::cat({dropped.narrow(2, 0, N), at::zeros_like(dropped.narrow(2, N, W))}, 2);
  }
  add_to_state(state, phi, values, dropped);
  const at::Tensor row4 = row.unsqueeze(-1);
  state.k = at::where(row4, entries_at(keys, index), state.k);
  state.v = at::where(row4, entries_at(values, index), state.v);
  state.positions = at::where(row, kept.gather(2, by_position), state.positions);
}

namespace {

// The hybrid of one chunk of queries after another.
class RecallWalk {
 public:
  RecallWalk(const at::Tensor& q,
             const at::Tensor& k,
             const at::Tensor& v,
             const HybridParameters& parameters,
             const HybridOptions& options)
      : parameters_(parameters),
        options_(options),
        B_(q.size(0)),
        H_(q.size(1)),
        G_(k.size(1)),
        T_(q.size(2)),
        W_(options.window_size),
        S_(std::min(options.num_sinks, q.size(2))),
        sliding_(options.window == WindowLayout::kSliding),
        q_(q),
        k_(k),
        v_(v),
        dtype_(sums_dtype(q)),
        phi_q_(apply_feature_map(q, parameters.q, options, H_, FeatureMapRole::kQuery)),
        gate_(at::sigmoid(parameters.window_factors.to(dtype_)).reshape({1, G_, H_ / G_, 1, 1})),
        state_(make_recall_state(
            B_, num_key_heads(parameters, H_), G_, q.size(3), phi_q_.size(3), k, options)),
        everywhere_(at::ones({B_}, q.options().dtype(at::kBool))) {}

  at::Tensor run(at::Tensor* kept) {
    std::vector<at::Tensor> outputs, choices;
    for (std::int64_t begin = 0; begin < T_; begin += W_) {
      const std::int64_t chosen = begin - (sliding_ ? W_ : 2 * W_);  // the chunk of the choice
      if (chosen >= 0) {
        if (sliding_ && chosen >= W_) fold_evicted(chosen - W_);
        choose(chosen);
        choices.push_back(state_.positions);
      }
      outputs.push_back(attend(begin, std::min(begin + W_, T_)));
    }
    if (kept != nullptr) {
      *kept = choices.empty()
                  ? at::empty({0, B_, G_, options_.recall_cache}, state_.positions.options())
                  : at::stack(choices);
    }
    return at::cat(outputs, 2);
  }

 private:
  void choose(std::int64_t chunk_begin) {
    const at::Tensor first = at::full({B_}, chunk_begin, state_.positions.options());
    choose_recalled(state_,
                    k_.narrow(2, chunk_begin, W_),
                    v_.narrow(2, chunk_begin, W_),
                    first,
                    everywhere_,
                    !sliding_,
                    parameters_,
                    options_);
    is_kept_ = kept_of(state_.positions, chunk_begin);
  }

  // Which tokens of a chunk the cache holds: [B, G, W].
  [[nodiscard]] at::Tensor kept_of(const at::Tensor& positions, std::int64_t chunk_begin) const {
    const at::Tensor tokens = at::arange(chunk_begin, chunk_begin + W_, positions.options());
    return positions.unsqueeze(-1).eq(tokens).any(2);
  }

  // Folds what the choice of this chunk did not keep: all of it has left the window.
  void fold_evicted(std::int64_t chunk_begin) {
    const at::Tensor tokens = at::arange(chunk_begin, chunk_begin + W_, state_.positions.options());
    const at::Tensor counts = is_kept_.bitwise_not() & tokens.ge(options_.num_sinks);
    fold_keys(state_,
              k_.narrow(2, chunk_begin, W_),
              v_.narrow(2, chunk_begin, W_),
              counts,
              parameters_,
              options_);
  }

  // Rows of the query heads of a kv head below each other: [B, G, R, n, ..].
  [[nodiscard]] at::Tensor grouped(const at::Tensor& x) const {
    return x.unflatten(1, {G_, H_ / G_});
  }

  at::Tensor attend(std::int64_t begin, std::int64_t end) {
    const std::int64_t n = end - begin, first = std::max<std::int64_t>(0, begin - W_),
                       N = options_.recall_cache;
    const at::TensorOptions ints = state_.positions.options();
    const at::Tensor query = at::arange(begin, end, ints).unsqueeze(1);  // [n, 1]
    const at::Tensor near = at::arange(first, end, ints).unsqueeze(0);   // [1, m]
    const at::Tensor sink = at::arange(S_, ints).unsqueeze(0);
    const at::Tensor causal = near.le(query) & near.ge(options_.num_sinks);
    const at::Tensor inside = sliding_ ? causal & near.gt(query - W_) : causal;
    at::Tensor cached = state_.positions.ge(0).unsqueeze(2);  // [B, G, 1, N]
    if (sliding_) cached = cached & state_.positions.unsqueeze(2).le(query - W_);
    const at::Tensor outside = at::cat({sink.le(query).expand({B_, G_, n, S_}),
                                        cached.expand({B_, G_, n, N}),
                                        inside.expand({B_, G_, n, end - first})},
                                       3)
                                   .bitwise_not()
                                   .unsqueeze(2);
    const auto columns = [&](const at::Tensor& x, const at::Tensor& of_cache) {
      return at::cat({x.narrow(2, 0, S_), of_cache, x.narrow(2, first, end - first)}, 2).to(dtype_);
    };
    const at::Tensor keys = columns(k_, state_.k), values = columns(v_, state_.v);
    const double scale = 1.0 / std::sqrt(static_cast<double>(q_.size(3)));
    const at::Tensor queries = grouped(q_.narrow(2, begin, n).to(dtype_)) * scale;
    const auto product = [&](const at::Tensor& rows, const at::Tensor& right) {
      return at::matmul(rows.flatten(2, 3), right).unflatten(2, {H_ / G_, n});
    };
    const at::Tensor scores =
        product(queries, keys.transpose(-1, -2)).masked_fill(outside, -INFINITY);
    at::Tensor gate = gate_;
    if (options_.caps_linear()) {
      std::vector<float> gains;
      for (std::int64_t i = begin; i < end; ++i) gains.push_back(window_gain(options_, i));
      gate = gate * at::tensor(gains, gate.options()).reshape({n, 1});
    }
    at::Tensor weights = gate * (scores - scores.amax(-1, true)).exp();
    at::Tensor sum = weights.sum(-1, true), y = product(weights, values);
    add_linear(begin, end, first, y, sum);
    y = (y / sum).flatten(1, 2);
    return options_.fp32_output ? y : y.to(q_.scalar_type());
  }

  void add_linear(
      std::int64_t begin, std::int64_t end, std::int64_t first, at::Tensor& y, at::Tensor& sum) {
    const std::int64_t n = end - begin, U = state_.kv_state.size(1);
    const at::Tensor phi = phi_q_.narrow(2, begin, n).unflatten(1, {U, H_ / U});
    const auto of_heads = [&](const at::Tensor& x) { return grouped(x.flatten(1, 2)); };
    y = y + of_heads(at::matmul(phi, state_.kv_state.unsqueeze(2)));
    sum = sum + of_heads(at::matmul(phi, state_.k_state.unsqueeze(2).unsqueeze(-1)));
    if (!sliding_ || begin == 0) return;
    // Pairs with keys of the chunk before that its choice did not keep and that have left the
    // window.
    const at::TensorOptions ints = state_.positions.options();
    const at::Tensor query = at::arange(begin, end, ints).unsqueeze(1);
    const at::Tensor near = at::arange(first, begin, ints).unsqueeze(0);
    const at::Tensor left = near.le(query - W_) & near.ge(options_.num_sinks);
    const at::Tensor pairs = left.unsqueeze(0).unsqueeze(0) & is_kept_.bitwise_not().unsqueeze(2);
    const at::Tensor phi_k =
        apply_feature_map(k_.narrow(2, first, W_), parameters_.k, options_, U, FeatureMapRole::kKey)
            .unsqueeze(2);
    const at::Tensor mask = pairs.repeat_interleave(U / G_, 1).unsqueeze(2);
    const at::Tensor weights =
        at::matmul(phi, phi_k.transpose(-1, -2)).masked_fill(mask.bitwise_not(), 0.0);
    const at::Tensor values =
        v_.narrow(2, first, W_).to(dtype_).repeat_interleave(U / G_, 1).unsqueeze(2);
    y = y + of_heads(at::matmul(weights, values));
    sum = sum + of_heads(weights.sum(-1, true));
  }

  const HybridParameters& parameters_;
  const HybridOptions& options_;
  std::int64_t B_, H_, G_, T_, W_, S_;
  bool sliding_;
  const at::Tensor &q_, &k_, &v_;
  at::ScalarType dtype_;
  at::Tensor phi_q_, gate_;
  RecallState state_;
  at::Tensor everywhere_, is_kept_;  // which of the last choice's chunk it kept: [B, G, W]
};

// How many choices count for the token at `position` [B]; the chunk of the next one.
at::Tensor num_choices(const at::Tensor& position, const HybridOptions& options) {
  const std::int64_t behind = options.window == WindowLayout::kSliding ? 0 : 1;
  return (position.div(options.window_size, "floor") - behind).clamp_min(0);
}

RecallState of_decode(const DecodeState& state) {
  return {state.kv_state, state.k_state, state.recall_k, state.recall_v, state.recall_positions};
}

void put_back(const RecallState& from, const DecodeState& state) {
  state.kv_state.copy_(from.kv_state);
  state.k_state.copy_(from.k_state);
  state.recall_k.copy_(from.k);
  state.recall_v.copy_(from.v);
  state.recall_positions.copy_(from.positions);
}

// x [B, G, T, D] at tokens [B, n].
at::Tensor tokens_at(const at::Tensor& x, const at::Tensor& tokens) {
  const at::Tensor index = tokens.clamp(0, x.size(2) - 1).unsqueeze(1).unsqueeze(-1);
  return x.gather(2, index.expand({-1, x.size(1), -1, x.size(3)}));
}

// Which of the tokens [B, n] the cache holds, [B, G, n].
at::Tensor held(const at::Tensor& positions, const at::Tensor& tokens) {
  return positions.unsqueeze(-1).eq(tokens.unsqueeze(1).unsqueeze(1)).any(2);
}

}  // namespace

at::Tensor recall_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            at::Tensor* kept) {
  return RecallWalk(q, k, v, parameters, options).run(kept);
}

void prefill_recalled(const at::Tensor& k,
                      const at::Tensor& v,
                      const HybridParameters& parameters,
                      const HybridOptions& options,
                      const DecodeState& state) {
  const c10::NoGradGuard no_grad;
  const std::int64_t B = k.size(0), W = options.window_size;
  const bool sliding = options.window == WindowLayout::kSliding;
  RecallState recall = of_decode(state);
  const at::Tensor counts = num_choices(state.positions - 1, options);
  at::Tensor is_kept;  // of the chunk of the last choice
  const std::int64_t most = k.size(2) / W - (sliding ? 0 : 1);
  const auto fold_evicted = [&](std::int64_t chunk, const at::Tensor& evicted) {
    const at::Tensor tokens = at::arange(chunk * W, (chunk + 1) * W, counts.options());
    const at::Tensor left = is_kept.bitwise_not() & tokens.ge(options.num_sinks) & evicted;
    fold_keys(
        recall, k.narrow(2, chunk * W, W), v.narrow(2, chunk * W, W), left, parameters, options);
  };
  for (std::int64_t chunk = 0; chunk < most; ++chunk) {
    const at::Tensor active = counts.gt(chunk);
    if (sliding && chunk > 0) fold_evicted(chunk - 1, active.reshape({B, 1, 1}));
    const at::Tensor before = is_kept;
    choose_recalled(recall,
                    k.narrow(2, chunk * W, W),
                    v.narrow(2, chunk * W, W),
                    at::full({B}, chunk * W, counts.options()),
                    active,
                    !sliding,
                    parameters,
                    options);
    if (!sliding) continue;
    const at::Tensor tokens =
        at::arange(chunk * W, (chunk + 1) * W, counts.options()).expand({B, W});
    is_kept = held(recall.positions, tokens);
    // A row whose last choice this is: what has left its window since.
    const at::Tensor last = counts.eq(chunk + 1).reshape({B, 1, 1});
    const at::Tensor gone = tokens.le((state.positions - 1 - W).reshape({B, 1})).unsqueeze(1);
    fold_evicted(chunk, last & gone);
  }
  put_back(recall, state);
}

void leave_window(const HybridParameters& parameters,
                  const HybridOptions& options,
                  const DecodeState& state) {
  const c10::NoGradGuard no_grad;
  const std::int64_t W = options.window_size;
  const bool sliding = options.window == WindowLayout::kSliding;
  const at::Tensor position = state.positions;
  // On the CPU most steps are known to have no border.
  const at::Tensor chunk = position.div(W, "floor") - (sliding ? 1 : 2);
  const at::Tensor active = position.remainder(W).eq(0) & chunk.ge(0);
  RecallState recall = of_decode(state);
  const auto read = [&](const at::Tensor& ring, const at::Tensor& tokens) {
    return tokens_at(ring, tokens.remainder(ring.size(2)));
  };
  const bool chooses = !position.is_cpu() || active.any().item<bool>();
  if (!chooses && !sliding) return;
  if (chooses) {
    const at::Tensor first = chunk * W;
    const at::Tensor tokens = first.unsqueeze(1) + at::arange(W, position.options());
    choose_recalled(recall,
                    read(state.window_k, tokens),
                    read(state.window_v, tokens),
                    first,
                    active,
                    !sliding,
                    parameters,
                    options);
  }
  if (sliding) {
    const at::Tensor leaving = (position - W).unsqueeze(1);
    const at::Tensor counts =
        held(recall.positions, leaving).bitwise_not() & leaving.ge(options.num_sinks).unsqueeze(1);
    fold_keys(recall,
              read(state.window_k, leaving),
              read(state.window_v, leaving),
              counts,
              parameters,
              options);
  }
  put_back(recall, state);
}

}  // namespace hedgerow::kernels
