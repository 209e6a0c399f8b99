// With u_j = [v_j, 1] and e_i = [dy_i / Z_i, -dy_i.y_i / Z_i], a_ij the weight (p or l) of a pair,
// both directions are products of tiles and of states [F, D + 1]:
//
//   [sum_j a v, Z]_i = sum_tile a_ij u_j + phi_q_i S,  S = sum_before phi_k_j u_j^T
//   da_ij = e_i.u_j,  dphi_q_i = sum_near da_ij phi_k_j + S e_i
//   dphi_k_j = sum_near da_ij phi_q_i + dS u_j,  dS = sum_after phi_q_i e_i^T
//   dv_j = the first D of sum_tile a_ij e_i + dS^T phi_k_j
//
// and t_i, ds_ij as in hybrid_backward_walker.hpp. Beyond inputs and outputs a part holds tiles
// [T, 2W] and states [T / W, F, D + 1] of its heads.
#include "kernels/aten/hybrid_attention_aten.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "kernels/aten/chunks_aten.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels::aten {
namespace {

// Columns beside a value's D: the one that carries the sum of weights, and zeros that keep rows
// whole vectors.
constexpr std::int64_t kExtra = 4;

// Temporaries of a kv head of one sequence: the larger of its tiles and its states.
std::int64_t elements_per_head(const HybridProblem& problem) {
  const Chunks c(problem);
  return c.R * c.N * std::max(c.C * c.tile_keys(), c.F * (c.D + kExtra));
}

// x [.., n] -> [.., n + kExtra], the first extra column given.
at::Tensor with_column(const at::Tensor& x, const at::TensorOptions& options) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() += kExtra;
  at::Tensor out = at::zeros(sizes, options);
  out.narrow(-1, 0, x.size(-1)).copy_(x);
  return out;
}

// One part's tensors that both directions read.
struct Operands {
  Operands(const HybridProblem& problem,
           const at::Tensor& phi_q_tokens,
           const at::Tensor& phi_k_tokens)
      : c(problem), values(problem.v.defined() ? c.D : 0) {
    at::Tensor u_tokens = problem.v.defined() ? with_column(problem.v, c.options)
                                              : at::zeros({c.B, c.G, c.T, kExtra}, c.options);
    u_tokens.select(3, values).fill_(1.0);
    u = c.key_chunks(u_tokens);
    u_tiles = c.tiles(u);
    phi_q = c.query_chunks(phi_q_tokens);
    phi_k = c.feature_chunks(phi_k_tokens);
    if (problem.windowed()) {
      gate = problem.gate.reshape({1, c.G, 1, c.R, 1, 1});
      const at::Tensor tokens = at::arange(c.N * c.C, c.options.dtype(at::kLong));
      const at::Tensor gains =
          window_gains(tokens, problem.options, c.options.dtype().toScalarType());
      if (gains.defined()) gate = gate * gains.reshape({1, 1, c.N, 1, c.C, 1});
    }
  }

  // Scores of the tiles, -inf outside the window.
  void make_scores(const HybridProblem& problem) {
    scale = 1.0 / std::sqrt(static_cast<double>(c.D));
    q = c.query_chunks(problem.q).mul(scale);
    k_tiles = c.tiles(c.key_chunks(problem.k));
    scores = at::matmul(q.flatten(3, 4), k_tiles.transpose(-1, -2)).unflatten(3, {c.R, c.C});
    scores.masked_fill_(c.outside_window(), -INFINITY);
    maxima = scores.amax(-1, true);
  }
  // p of the tiles, once scores are made.
  [[nodiscard]] at::Tensor window_weights() const { return (scores - maxima).exp_().mul_(gate); }

  // phi_k of the first chunk of each tile's keys, a key map at a time: [B, G, N, K, C, F].
  [[nodiscard]] at::Tensor near_features() const { return phi_k.narrow(2, 0, c.N).transpose(3, 4); }
  // l of the pairs inside the tiles: [B, G, N, R, C, C].
  [[nodiscard]] at::Tensor near_weights() const {
    return at::matmul(phi_q, near_features().transpose(-1, -2)).masked_fill_(c.not_near(), 0.0);
  }
  // The weights of all pairs of the tiles.
  [[nodiscard]] at::Tensor tile_weights(const at::Tensor& near) const {
    if (!gate.defined()) {
      return near;
    }
    at::Tensor weights = window_weights();
    if (near.defined()) {
      weights.narrow(-1, 0, c.C).add_(near);
    }
    return weights;
  }

  // S of the chunks that see one: [B, G, with_state, K F, D + kExtra].
  [[nodiscard]] at::Tensor states() const {
    const std::int64_t chunks = c.with_state();
    at::Tensor sums = at::matmul(phi_k.narrow(2, c.lead(), chunks).flatten(4, 5).transpose(-1, -2),
                                 u.narrow(2, c.lead(), chunks));
    accumulate_chunks(sums, false);
    return sums;
  }
  // The rows of queries that see a state.
  [[nodiscard]] at::Tensor with_state(const at::Tensor& x) const {
    return x.narrow(2, c.first_with_state(), c.with_state());
  }

  Chunks c;
  std::int64_t values;  // columns of v: 0 where only the denominators are wanted
  double scale = 1.0;
  at::Tensor u, u_tiles, phi_q, phi_k, gate;  // see Chunks for the layouts
  at::Tensor q, k_tiles, scores, maxima;      // with make_scores; q is scaled
};

void forward_part(const Part& part, const HybridForward& out) {
  const HybridProblem& problem = part.problem;
  const FeatureMapOptions& map = problem.options;
  Operands x(
      problem,
      apply_feature_map(problem.q, problem.map_q, map, part.num_h, FeatureMapRole::kQuery),
      apply_feature_map(problem.k, problem.map_k, map, problem.key_heads, FeatureMapRole::kKey));
  if (problem.windowed()) {
    x.make_scores(problem);
  }
  const at::Tensor near = x.c.has_near() ? x.near_weights() : at::Tensor();
  at::Tensor sums =
      at::matmul(x.tile_weights(near).flatten(3, 4), x.u_tiles).unflatten(3, {x.c.R, x.c.C});
  at::Tensor mass =
      near.defined() ? near.sum(-1) : at::zeros(sums.sizes().slice(0, 5), x.c.options);
  if (x.c.with_state() > 0) {
    const at::Tensor before =
        at::matmul(x.with_state(x.phi_q), x.states().unflatten(3, {x.c.K, x.c.F}));
    x.with_state(sums).add_(before);
    x.with_state(mass).add_(before.select(-1, x.values));
  }
  at::Tensor denominator = sums.narrow(-1, x.values, 1);
  if (!problem.windowed()) {
    denominator = denominator + kLinearEpsilon;
  }
  part.queries(out.denominator).copy_(x.c.query_tokens(denominator).squeeze(-1));
  part.queries(out.linear_mass).copy_(x.c.query_tokens(mass.unsqueeze(-1)).squeeze(-1));
  if (out.y.defined()) {
    const at::Tensor y = x.c.query_tokens(sums.narrow(-1, 0, x.values) / denominator);
    part.queries(out.y).copy_(y);
    if (out.y_saved.defined() && !out.y_saved.is_same(out.y)) {
      part.queries(out.y_saved).copy_(y);
    }
  }
}

class BackwardPart {
 public:
  BackwardPart(const Part& part,
               const HybridForward& forward,
               const at::Tensor& dy,
               const HybridNeeds& needs)
      : part_(part),
        problem_(part.problem),
        needs_(needs),
        map_q_(problem_.q,
               problem_.map_q,
               problem_.options,
               part.num_h,
               FeatureMapRole::kQuery,
               needs.q,
               needs.map_q),
        map_k_(problem_.k,
               problem_.map_k,
               problem_.options,
               problem_.key_heads,
               FeatureMapRole::kKey,
               needs.k,
               needs.map_k),
        x_(problem_, map_q_.phi(), map_k_.phi()) {
    const at::Tensor inverse = part.queries(forward.denominator).reciprocal().unsqueeze(-1);
    const at::Tensor dn = part.queries(dy).to(x_.c.options.dtype()) * inverse;
    at::Tensor e = with_column(dn, x_.c.options);
    e.select(3, x_.values).copy_((dn * part.queries(forward.y_saved)).sum(-1)).neg_();
    e_ = x_.c.query_chunks(e);
  }

  void run(const HybridGradients& out) {
    const bool wants_totals =
        problem_.windowed() && (needs_.q || needs_.k || needs_.window_factors);
    const bool from_pairs = wants_totals && totals_from_pairs();
    if (problem_.windowed() && (needs_.q || needs_.k || needs_.v || from_pairs)) {
      x_.make_scores(problem_);
    }
    queries_side();
    keys_side();
    at::Tensor totals, p_da;
    if (problem_.windowed() && (needs_.q || needs_.k || from_pairs)) {
      p_da = window_pairs();
    }
    if (wants_totals) {
      totals = from_pairs ? p_da.sum(-1) : window_totals();
    }
    if (problem_.windowed() && (needs_.q || needs_.k)) {
      score_side(totals, p_da);
    }
    store(out, totals);
  }

 private:
  // dphi_q_, and the tiles' share of dphi_k_.
  void queries_side() {
    dphi_q_ = at::zeros_like(x_.phi_q);
    dphi_k_ = at::zeros_like(x_.phi_k);
    if (x_.c.with_state() > 0) {
      x_.with_state(dphi_q_).add_(at::matmul(
          x_.with_state(e_), x_.states().unflatten(3, {x_.c.K, x_.c.F}).transpose(-1, -2)));
    }
    if (x_.c.has_near()) {
      const at::Tensor da =
          at::matmul(e_.flatten(3, 4), x_.u.narrow(2, 0, x_.c.N).transpose(-1, -2))
              .unflatten(3, {x_.c.R, x_.c.C})
              .masked_fill_(x_.c.not_near(), 0.0);
      dphi_q_.add_(at::matmul(da, x_.near_features()));
      dphi_k_.narrow(2, 0, x_.c.N)
          .add_(x_.c.by_key_map(at::matmul(da.transpose(-1, -2), x_.phi_q)).transpose(3, 4));
    }
  }

  // dphi_k_ of keys in states, and dv.
  void keys_side() {
    const std::int64_t chunks = x_.c.with_state();
    if (needs_.v) {
      const at::Tensor near = x_.c.has_near() ? x_.near_weights() : at::Tensor();
      du_ = at::zeros_like(x_.u);
      x_.c.add_tiles(
          du_, at::matmul(x_.tile_weights(near).flatten(3, 4).transpose(-1, -2), e_.flatten(3, 4)));
    }
    if (chunks == 0) {
      return;
    }
    at::Tensor states =
        x_.c.by_key_map(at::matmul(x_.with_state(x_.phi_q).transpose(-1, -2), x_.with_state(e_)));
    accumulate_chunks(states, true);
    states = states.flatten(3, 4);  // dS [B, G, chunks, K F, D + kExtra]
    dphi_k_.narrow(2, x_.c.lead(), chunks)
        .add_(at::matmul(x_.u.narrow(2, x_.c.lead(), chunks), states.transpose(-1, -2))
                  .unflatten(4, {x_.c.K, x_.c.F}));
    if (needs_.v) {
      du_.narrow(2, x_.c.lead(), chunks)
          .add_(at::matmul(x_.phi_k.narrow(2, x_.c.lead(), chunks).flatten(4, 5), states));
    }
  }

  // Taylor features have signs, and terms of phi_q.dphi_q cancel: there the window's own sum is the
  // better one. Without a linear pair t_i is 0 exactly, and only the linear side says so.
  [[nodiscard]] bool totals_from_pairs() const {
    return problem_.options.row().series &&
           (x_.c.with_state() > 0 || x_.c.has_near());
  }

  // p da of the window's pairs, tile by tile.
  [[nodiscard]] at::Tensor window_pairs() const {
    return at::matmul(e_.flatten(3, 4), x_.u_tiles.transpose(-1, -2))
        .unflatten(3, {x_.c.R, x_.c.C})
        .mul_(x_.window_weights());
  }

  // t_i [B, G, N, R, C] = the window's sum of p da.
  [[nodiscard]] at::Tensor window_totals() const { return (x_.phi_q * dphi_q_).sum(-1).neg_(); }

  // dq and dk through the scores; the maximum's keys share -t_i.
  void score_side(const at::Tensor& totals, const at::Tensor& p_da) {
    const at::Tensor at_maximum = x_.scores.eq(x_.maxima);
    const at::Tensor share = totals.unsqueeze(-1) / at_maximum.sum(-1, true);
    const at::Tensor ds = (p_da - at_maximum * share).flatten(3, 4);
    if (needs_.q) {
      dq_ = x_.c.query_tokens(
          at::matmul(ds, x_.k_tiles).mul_(x_.scale).unflatten(3, {x_.c.R, x_.c.C}));
    }
    if (needs_.k) {
      at::Tensor dk =
          at::zeros({x_.c.B, x_.c.G, x_.c.lead() + x_.c.N, x_.c.C, x_.c.D}, x_.c.options);
      x_.c.add_tiles(dk, at::matmul(ds.transpose(-1, -2), x_.q.flatten(3, 4)));
      dk_ = x_.c.key_tokens(dk);
    }
  }

  void store(const HybridGradients& out, const at::Tensor& totals) {
    const auto gradients_q = map_q_.backward(x_.c.query_tokens(dphi_q_));
    const auto gradients_k = map_k_.backward(x_.c.feature_tokens(dphi_k_));
    const auto store_rows =
        [](const at::Tensor& target, const at::Tensor& window, const at::Tensor& map) {
          target.copy_(window.defined() ? window + map : map);
        };
    if (needs_.q) {
      store_rows(part_.queries(out.q), dq_, gradients_q.x);
    }
    if (needs_.k) {
      store_rows(part_.keys(out.k), dk_, gradients_k.x);
    }
    if (needs_.v) {
      part_.keys(out.v).copy_(x_.c.key_tokens(du_).narrow(3, 0, x_.values));
    }
    part_.add_query_map(out.map_q, gradients_q.weights);
    part_.add_key_map(out.map_k, gradients_k.weights);
    if (needs_.window_factors) {
      const at::Tensor total = totals.sum({0, 2, 4}, false, at::kDouble).flatten();
      part_.add_heads(out.window_factors, (1 - problem_.gate.to(at::kDouble)) * total);
    }
  }

  const Part& part_;
  const HybridProblem& problem_;
  const HybridNeeds& needs_;
  DifferentiableMap map_q_, map_k_;
  Operands x_;
  at::Tensor e_, dphi_q_, dphi_k_, du_, dq_, dk_;
};

}  // namespace

HybridForward hybrid_forward_aten(const HybridProblem& problem,
                                  bool keep_for_backward,
                                  std::int64_t part_elements) {
  const HybridForward out = make_hybrid_forward(problem, keep_for_backward);
  for (const Part& part : parts_of(problem, elements_per_head(problem), part_elements)) {
    forward_part(part, out);
  }
  return out;
}

HybridGradients hybrid_backward_aten(const HybridProblem& problem,
                                     const HybridForward& forward,
                                     const at::Tensor& dy,
                                     const HybridNeeds& needs,
                                     std::int64_t part_elements) {
  const auto like = [](bool needed, const at::Tensor& x) {
    return needed && x.defined() ? at::zeros_like(x) : at::Tensor();
  };
  HybridGradients out;
  out.q = like(needs.q, problem.q);
  out.k = like(needs.k, problem.k);
  out.v = like(needs.v, problem.v);
  out.map_q = {like(needs.map_q, problem.map_q.layer), like(needs.map_q, problem.map_q.bias)};
  out.map_k = {like(needs.map_k, problem.map_k.layer), like(needs.map_k, problem.map_k.bias)};
  out.window_factors = like(needs.window_factors, problem.gate);
  for (const Part& part : parts_of(problem, elements_per_head(problem), part_elements)) {
    BackwardPart(part, forward, dy, needs).run(out);
  }
  return out;
}

}  // namespace hedgerow::kernels::aten
