// The weights' cross-entropy of a tile of 64 queries (transfer_loss.hpp; terms:
// cross_entropy_arguments.hpp): every query's loss, and what the gradients want of it. O(T^2)
// pairs, none of them written.
//
// Grid (tiles, B H), the longest rows first; 128 threads, 16 queries a warp. The keys are met
// twice: from the diagonal back for the sums (the student's window, then the teacher), and forwards
// for the loss, with l = phi_q phi_k^T from kept phi_k. Shared memory: hybrid_tile.cuh's, with K of
// the second walk beside phi_k. Per query 2 D T + F T + 2 D f FLOPs; where a window ends inside a
// tile + 2 D (keys of its tiles).
#pragma once

#include "kernels/cuda/hybrid/hybrid_tile.cuh"
#include "kernels/cuda/transfer/cross_entropy_arguments.hpp"

namespace hedgerow::kernels::cuda {

template <typename S>
struct alignas(128) CrossEntropyShared {
  using Sizes = TileSizes<S>;
  static constexpr int kStages = 2;
  Bf16 q[Sizes::kRows];
  union {
    Bf16 pool[2 * kStages * Sizes::kRows];
    struct {
      Bf16 linear[Sizes::kLinear];
      Bf16 keys[Sizes::kRows];
    };
  };
  float state_sum[S::kFeatures];
};

template <typename S>
class CrossEntropyTile : HybridTile<S, CrossEntropyShared<S>> {
  using Base = HybridTile<S, CrossEntropyShared<S>>;
  using Base::tile_, Base::in_, Base::rows_, Base::shared_, Base::phi_, Base::window_,
      Base::linear_, Base::first_row, Base::queries, Base::stores_row, Base::token_index,
      Base::row_index, Base::head_, Base::batch_;

 public:
  using Base::kThreads;
  using Shared = CrossEntropyShared<S>;

  HEDGEROW_TILE CrossEntropyTile(const CrossEntropyArguments& arguments,
                                 Shared& shared,
                                 int tile,
                                 int row)
      : Base(arguments, false, shared, tile, row), a_(arguments) {}

  HEDGEROW_TILE void run() {
    this->copy_queries();
    walk_sums();
    const bool linear = this->has_linear();
    if (linear || a_.gradients) {
      this->add_linear();
    }
    linear_ = row_sums_of_quad(linear_);
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      denominator_.values[r] = this->denominator(r);
      log_denominator_.values[r] = log_two(denominator_.values[r]);
    }
    walk_losses();
    store();
  }

 private:
  // The window's maximum and sum, then the teacher's normaliser.
  HEDGEROW_TILE void walk_sums() {
    RunningSoftmax softmax = this->walk_teacher([&](const RunningSoftmax& window) {
      const RowPair gates = rows_.gates(in_, head_);
      window_ = row_sums_of_quad(window.sums);
      HEDGEROW_UNROLL
      for (int r = 0; r < 2; ++r) {
        window_.values[r] *= gates.values[r];
        offset_.values[r] = log_two(gates.values[r]) - window.maxima.values[r];
      }
    });
    softmax.finish();
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      normaliser_.values[r] = softmax.maxima.values[r] + log_two(softmax.sums.values[r]);
    }
  }

  HEDGEROW_TILE void walk_losses() {
    const Tile<S::kFeatures> features{shared_.linear};
    const Tile<S::kHeadDim> keys{shared_.keys};
    const float scale = kLog2E / sqrtf(static_cast<float>(S::kHeadDim));
    const QueryRows causal = QueryRows::causal(tile_, first_row());
    HEDGEROW_NO_UNROLL
    for (int t = 0; t <= tile_; ++t) {
      const bool linear = t < in_.near_linear_end(tile_);
      sync_threads();
      copy_rows<kTile, S::kHeadDim, kThreads>(
          keys, rows_from(in_.k, batch_, this->kv_head(), t * kTile), this->valid_rows(t));
      if (linear) {
        const std::int64_t index = this->key_row_index() * in_.tiles() + t;
        copy_rows<kTile, S::kFeatures, kThreads>(
            features, {a_.features_k + index * kTile * S::kFeatures, S::kFeatures}, kTile);
      }
      commit_copies();
      wait_for_copies<0>();
      sync_threads();
      Sums<kTile> scores, products;
      window_scores(scores, queries(), first_row(), keys, causal, 0, t * kTile, scale);
      products.clear();
      if (linear) {
        multiply_transposed(products, phi_, features);
      }
      add_losses(scores, products, t * kTile);
    }
  }

  HEDGEROW_TILE void add_losses(const Sums<kTile>& scores, const Sums<kTile>& products, int first) {
    const float lowest = log_two(a_.clamp);
    HEDGEROW_UNROLL
    for (int n = 0; n < scores.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int r = i / 2, key = first + column_of(n, i);
        const float s = scores.values[n][i];
        if (s != minus_infinity()) {
          const float teacher = power_of_two(s - normaliser_.values[r]);
          const bool linear = rows_.is_linear(r, key);
          // A linear weight is compared as it is, as the gradients do: it may be 0 or, with the
          // identity for a map, negative.
          const float l = products.values[n][i];
          const float weight = linear ? log_two(l) : s + offset_.values[r];
          const float log_student = weight - log_denominator_.values[r];
          const bool below = linear ? l < a_.clamp * denominator_.values[r] : log_student < lowest;
          losses_.values[r] -= teacher * (below ? lowest : log_student);
          counted_.values[r] += below ? 0.0F : teacher;
          counted_linear_.values[r] += below || !linear ? 0.0F : teacher;
        }
      }
    }
  }

  HEDGEROW_TILE void store() {
    float sum = 0.0F;
    counted_ = row_sums_of_quad(counted_);
    counted_linear_ = row_sums_of_quad(counted_linear_);
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      constexpr float kLogOfTwo = 0.693147180559945309F;
      sum += rows_.query[r] < in_.T ? kLogOfTwo * losses_.values[r] : 0.0F;
      if (a_.gradients && stores_row(r)) {
        const std::int64_t at = token_index(r);
        const float share = counted_.values[r] / denominator_.values[r];
        a_.rows.normaliser[at] = normaliser_.values[r];
        a_.rows.share[at] = share;
        a_.rows.floor[at] = a_.clamp * denominator_.values[r];
        if (a_.rows.totals != nullptr) {
          a_.rows.totals[at] = counted_linear_.values[r] - share * linear_.values[r];
        }
      }
    }
    sum = sum_of_lanes(sum, 32);
    if (lane() == 0) {
      a_.losses[(row_index() * in_.tiles() + tile_) * 4 + warp()] = sum;
    }
    if (a_.gradients) {
      store_features();
    }
  }

  // phi_q as the left factor holds it, two columns at a time; zero beyond the last token.
  HEDGEROW_TILE void store_features() {
    Bf16* out = a_.features_q + (row_index() * in_.tiles() + tile_) * kTile * S::kFeatures;
    HEDGEROW_UNROLL
    for (int step = 0; step < phi_.kSteps; ++step) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2, row = first_row() + row_of(2 * r);
        const int column = 16 * step + column_of(0, 0) + i / 2 * 8;
        *reinterpret_cast<Word*>(out + row * S::kFeatures + column) =
            rows_.query[r] < in_.T ? phi_.words[step][i] : 0;
      }
    }
  }

  const CrossEntropyArguments& a_;
  // Values of the lane's rows: losses in bits; sums hold this lane's columns until store().
  RowPair offset_{{0.0F, 0.0F}}, normaliser_{{0.0F, 0.0F}}, denominator_, log_denominator_;
  RowPair losses_{{0.0F, 0.0F}}, counted_{{0.0F, 0.0F}}, counted_linear_{{0.0F, 0.0F}};
};

}  // namespace hedgerow::kernels::cuda
