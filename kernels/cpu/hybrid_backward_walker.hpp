// The gradients of one segment of a head, as hybrid_backward_cpu.cpp wants them of all. With r = 1
// / Z, delta = dy.y, and a_ij the weight (p or l) of the pair of query i and key j:
//
//   da_ij = r_i (dy_i.v_j - delta_i)
//   dv_j = sum_i a_ij r_i dy_i
//   t_i = sum over the window of p_ij da_ij
//   ds_ij = p_ij da_ij - [j at the maximum] t_i / ties
//   dphi_q_i = sum_j da_ij phi_k_j
//   dphi_k_j = sum_i da_ij phi_q_i
//
// The maximum is part of the model, so it is differentiated; equal maxima share. y does not change
// when p and l are scaled together, so t_i = -phi_q_i.dphi_q_i: the window factor's gradient,
// (1 - g) sum_i t_i, and the maximum's come without the window's scores and without their
// cancellation.
//
// Two walks over the segment's chunks: ascending with (S, z) as in the forward gives the queries'
// side, descending with (dS, dz) the keys' side. The forward saved y, Z, and (S, z) at the
// segments' borders; features and scores are computed again. Maps only: T D (8 F + 10 f) FLOPs; q,
// k and v add 20 W T D.
//
// What pairs of a query and a key in different segments give: the query's gradients where the query
// is, the key's where the key is. So the chunk behind a segment is walked again for the segment's
// last keys, and nothing passes between segments but the two states. Sinks meet queries of every
// segment: each gives its share of their gradients, folded afterwards. One walk is of a key head
// with all query heads that share its map: features and (S, z) once, the rest a query head.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/hybrid_segments_cpu.hpp"

namespace hedgerow::kernels::cpu {

// Results of every segment of every (batch, head), written by one task each and folded in a fixed
// order afterwards. Undefined: not needed. N: segments.
struct BackwardPartials {
  at::Tensor dq;                // [B, H, T, D] of q's dtype: final
  at::Tensor dk, dv;            // [B, U, T, D] fp32, before the fold over a kv head's key heads
  at::Tensor sink_k, sink_v;    // [B, N, U, sinks, padded(D)]: to be added to dk and dv
  at::Tensor layer_q, layer_k;  // [B, N, H or U, f, padded(D)]
  at::Tensor bias_q, bias_k;    // [B, N, H or U, f]
  at::Tensor totals;            // [B, N, H] fp64: sum of t_i over the segment's queries
};

// The sizes of a walk's tiles and of a segment, and what of it is asked for.
struct WalkerSizes {
  WalkerSizes(const TiledProblem& problem, const HybridNeeds& needs);

  std::int64_t D, F, sinks;
  std::int64_t ld, ld_chunk;  // lanes of a tile of queries, and of a chunk of keys
  std::int64_t width;         // padded(D)
  std::int64_t chunks, lag, tiles_per_chunk;
  std::int64_t tiles;     // the segment's tiles of queries, of all query heads
  std::int64_t key_rows;  // the segment's keys, and those of a chunk before and behind it
  bool near_linear;       // tiles hold linear pairs
  bool scores;            // the window's scores are needed
  bool keys_side, dq, dk, dv;

  // Chunks of queries that meet the segment's keys.
  [[nodiscard]] std::int64_t query_chunks() const { return chunks + lag + 1; }
  // Rows of a tile of the window's pairs.
  [[nodiscard]] std::int64_t window_rows() const { return sinks + 2 * ld_chunk; }
};

// What a walk computes on the way, each with its size; empty where it is not needed.
struct WalkerScratch {
  explicit WalkerScratch(const WalkerSizes& sizes) : n(sizes) {}

  const WalkerSizes n;
  // One tile or chunk.
  Scratch q_transposed{n.D * n.ld};
  Scratch dn{n.ld * n.width};
  Scratch dn_transposed{n.D * n.ld};
  Scratch phi_k{n.F * n.ld_chunk}, dphi{n.F * std::max(n.ld, n.ld_chunk)};
  Scratch v_transposed{n.keys_side ? n.D * n.ld_chunk : 0};
  Scratch scores_tile{n.scores ? n.window_rows() * n.ld : 0};
  Scratch weights{n.scores ? n.window_rows() * n.ld : 0}, da{n.window_rows() * n.ld};
  Scratch linear{n.ld_chunk * n.ld}, linear_transposed{n.ld * n.ld_chunk};
  Scratch dq_tile{n.dq ? n.ld * n.width : 0};
  // A segment: phi_q of every tile of every query head, and the tiles' share of dphi_k by chunk.
  Scratch phi_q{n.tiles * n.F * n.ld};
  Scratch dphi_near{n.near_linear ? (n.chunks + n.lag) * n.F * n.ld_chunk : 0};
  // A segment: dk and dv by key.
  Scratch dk{n.dk ? n.key_rows * n.width : 0}, dv{n.dv ? n.key_rows * n.width : 0};
  // A segment: 1 / Z and dz of every tile of every query head.
  Scratch inverse{n.tiles * n.ld}, dz{n.tiles * n.ld};
  Scratch sink_dk{n.dk ? n.sinks * n.width : 0}, sink_dv{n.dv ? n.sinks * n.width : 0};
  Scratch lanes{5 * n.ld};
};

// Used by one thread, for one segment after another; the state that walk_segments hands on is
// (dS, dz).
class BackwardWalker {
 public:
  BackwardWalker(const TiledProblem& problem,
                 const HybridForward& forward,
                 const at::Tensor& states,
                 const at::Tensor& dy,
                 const HybridNeeds& needs,
                 const BackwardPartials& out);
  void select(std::int64_t head);
  void walk(const Segment& segment, const float* before, float* behind);
  void sum(const Segment& segment, float* own);

 private:
  void enter(const Segment& segment);
  // Calls visit() for each query head of the key head, in ascending order.
  template <typename Visit>
  void each_query_head(const Visit& visit);
  // The tile's rows of q, dy and y.
  void read_rows(const QueryTile& tile);
  // The queries' side of one chunk, then (S, z) += phi_k [v, 1] of the chunk that leaves the tiles.
  // A chunk behind the segment gives only its pairs' share to the segment's keys.
  void ascend(std::int64_t chunk);
  void walk_tile(const QueryTile& tile, std::int64_t far);
  // What join_queries reads of a chunk that no ascent has walked.
  void prepare_queries(std::int64_t chunk);
  // dn = r dy as stored and transposed, and dz = -r delta a lane.
  void prepare_rows(const QueryTile& tile);
  // scratch_.dn = r dy.
  void scale_gradients(const QueryTile& tile);
  // da of the tile's pairs: all rows where the window's scores are needed, else the rows that hold
  // linear pairs; those are also copied, masked, to scratch_.linear.
  void pair_gradients(const QueryTile& tile);
  // scratch_.dphi = dphi_q of the tile; and the tile's own pairs' share of dphi_k.
  void query_features(const QueryTile& tile, std::int64_t far);
  // dq, dk and dv of the tile's pairs; totals[lane] = t_i.
  void window_side(const QueryTile& tile, const float* totals);
  void value_side(const QueryTile& tile);
  // The tile's pairs [window_rows, queries] times what their queries give, a row of D each, added
  // to what the keys have.
  void to_keys(const QueryTile& tile,
               const float* pairs,
               Right queries,
               Scratch& of_sinks,
               Scratch& of_keys);

  // The keys' side of one chunk, once the first chunk of queries that sees it through the state has
  // joined (dS, dz).
  void descend(std::int64_t chunk);
  // dS += phi_q^T dn, dz += phi_q^T (-r delta), over one chunk of queries.
  void join_queries(std::int64_t chunk);
  void store_segment();

  [[nodiscard]] std::int64_t lag() const { return problem_.state_lag(); }
  [[nodiscard]] bool is_own(std::int64_t chunk) const { return chunk < segment_.end_chunk; }
  // A head's part of a [B, heads, ...], and the segment's of a partial result; null: not needed.
  [[nodiscard]] float* head_of(const at::Tensor& x, std::int64_t head) const;
  [[nodiscard]] float* partial_of(const at::Tensor& x, std::int64_t head) const;
  // Scratch of the segment, by the chunk, token or key that it belongs to.
  [[nodiscard]] std::int64_t tile_index(std::int64_t query) const;  // and of the query head
  float* phi_q(std::int64_t query) {
    return scratch_.phi_q.data() + tile_index(query) * problem_.F * sizes_.ld;
  }
  float* dz(std::int64_t query) { return scratch_.dz.data() + tile_index(query) * sizes_.ld; }
  float* inverse(std::int64_t query) {
    return scratch_.inverse.data() + tile_index(query) * sizes_.ld;
  }
  float* dphi_near(std::int64_t chunk) {
    return scratch_.dphi_near.data() +
           (chunk - segment_.first_chunk + lag()) * problem_.F * sizes_.ld_chunk;
  }
  float* key_row(Scratch& x, std::int64_t key) {
    return x.data() + (key - (segment_.first_chunk - lag()) * problem_.chunk()) * sizes_.width;
  }

  const TiledProblem& problem_;
  const HybridForward& forward_;
  const at::Tensor& states_;
  const HybridNeeds& needs_;
  const BackwardPartials& out_;
  const WalkerSizes sizes_;
  std::int64_t b_ = 0;
  std::int64_t key_head_ = 0, h_ = 0, member_ = 0;  // query head h_ = key_head_ R + member_
  Segment segment_{};
  HeadRows q_rows_, k_rows_, v_rows_, y_rows_, dy_rows_, sink_k_rows_, sink_v_rows_;
  TileMap map_q_, map_k_;
  Rows q_, k_, v_, y_, dy_, sink_k_, sink_v_;  // q_, y_ and dy_: of a tile
  float gate_ = 0;
  std::vector<double> totals_;           // by member: sum over the segment's queries of t_i
  SegmentState state_, state_gradient_;  // (S, z) and (dS, dz)
  WalkerScratch scratch_;
};

}  // namespace hedgerow::kernels::cpu
