// y, Z and the linear mass of the hybrid (hybrid_attention.hpp), a tile of 64 queries a
// threadblock: every tile of every head is independent once hybrid_states.cuh has run, so that one
// sequence with few heads fills a card.
//
// Grid (tiles, B H), 128 threads, 16 queries a warp; what is computed in which order, and what of
// it is fp32: hybrid_tile.cuh. Per query 4 D (keys of its tiles + F) + 2 D f FLOPs; reads q, k, v
// and S once: 6 D + 2 F D / 64 bytes a token of a head, writes 2 D + 8.
#pragma once

#include "kernels/cuda/hybrid/hybrid_tile.cuh"

namespace hedgerow::kernels::cuda {

template <typename S>
struct alignas(128) ForwardShared {
  using Sizes = TileSizes<S>;
  static constexpr int kStages = 2;
  Bf16 q[Sizes::kRows];  // y on the way out
  union {
    Bf16 pool[2 * kStages * Sizes::kRows];
    struct {
      Bf16 linear[Sizes::kLinear];
      float window[Sizes::kRows];  // sum p v of the window
    };
  };
  float state_sum[S::kFeatures];
};

template <typename S>
class ForwardTile : HybridTile<S, ForwardShared<S>> {
  using Base = HybridTile<S, ForwardShared<S>>;
  using Base::batch_, Base::head_, Base::tile_, Base::far_, Base::in_, Base::rows_, Base::y_,
      Base::window_, Base::linear_, Base::has_values_, Base::first_row, Base::queries,
      Base::window_value, Base::stores_row, Base::token_index, Base::row_index, Base::has_window;

 public:
  using Base::kThreads;
  using Shared = ForwardShared<S>;

  HEDGEROW_TILE ForwardTile(const ForwardArguments& arguments, Shared& shared, int tile, int row)
      : Base(arguments, arguments.has_values, shared, tile, row), a_(arguments) {}

  HEDGEROW_TILE void run() {
    this->copy_queries();
    y_.clear();
    if (has_window()) {
      walk_window();
    }
    const bool linear = this->has_linear();
    if (linear) {
      put_window_aside();
      this->add_linear();
    }
    linear_ = row_sums_of_quad(linear_);
    store(linear && has_window());
  }

 private:
  // p = g e^(s - m) of the window, with values.
  HEDGEROW_TILE void walk_window() {
    RunningSoftmax softmax;
    this->keys().walk(
        y_, softmax, queries(), first_row(), rows_, tile_, far_, in_.far_sink_tiles(tile_));
    softmax.finish();
    const RowPair gates = rows_.gates(in_, head_);
    scale_rows(y_, gates);
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      window_.values[r] = gates.values[r] * softmax.sums.values[r];
      if (a_.maxima != nullptr && stores_row(r)) {
        a_.maxima[token_index(r)] = softmax.maxima.values[r];
        a_.ties[token_index(r)] = softmax.ties.values[r];
      }
    }
  }

  // What follows sums into y_ from zero: the two branches' shares are wanted apart in the end.
  HEDGEROW_TILE void put_window_aside() {
    if (!has_window() || !has_values_) {
      return;
    }
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        window_value(n, i) = y_.values[n][i];
        y_.values[n][i] = 0.0F;
      }
    }
  }

  // both: y_ is the linear branch's share alone.
  HEDGEROW_TILE void store(bool both) {
    RowPair inverse;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float denominator = this->denominator(r);
      inverse.values[r] = 1.0F / denominator;
      if (stores_row(r)) {
        a_.denominator[token_index(r)] = denominator;
        a_.linear_mass[token_index(r)] = linear_.values[r];
      }
    }
    if (!has_values_) {
      return;
    }
    if (a_.pull != nullptr) {
      store_pull(both, inverse);
    }
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float sum = y_.values[n][i] + (both ? window_value(n, i) : 0.0F);
        y_.values[n][i] = sum * inverse.values[i / 2];
      }
    }
    if (a_.y_is_float) {
      store_exact(static_cast<float*>(a_.y));
    } else {
      store_rows(
          y_, static_cast<Bf16*>(a_.y) + batch_ * a_.y_batch + head_ * a_.y_head, a_.y_token);
      if (a_.rest != nullptr) {
        store_rest();
      }
    }
  }

  HEDGEROW_TILE void store_rest() {
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; i += 2) {
        const Word pair = pack(y_.values[n][i], y_.values[n][i + 1]);
        y_.values[n][i] -= unpack(static_cast<Bf16>(pair));
        y_.values[n][i + 1] -= unpack(static_cast<Bf16>(pair >> 16));
      }
    }
    store_rows(y_, a_.rest + row_index() * in_.T * S::kHeadDim, S::kHeadDim);
  }

  // sum_window p (v - y) = (l N_window - p N_linear) / Z with p, l and N the branches' sums: exact
  // where either branch is small, and 0 where there is one branch alone.
  HEDGEROW_TILE void store_pull(bool both, RowPair inverse) {
    Sums<S::kHeadDim> pull;
    HEDGEROW_UNROLL
    for (int n = 0; n < pull.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int r = i / 2;
        const float difference =
            both ? linear_.values[r] * window_value(n, i) - window_.values[r] * y_.values[n][i]
                 : 0.0F;
        pull.values[n][i] = difference * inverse.values[r];
      }
    }
    store_rows(pull, a_.pull + row_index() * in_.T * S::kHeadDim, S::kHeadDim);
  }

  HEDGEROW_TILE std::int64_t y_offset(int query) const {
    return batch_ * a_.y_batch + head_ * a_.y_head + query * a_.y_token;
  }
  HEDGEROW_TILE void store_exact(float* out) {
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (rows_.query[i / 2] < in_.T) {
          out[y_offset(rows_.query[i / 2]) + column_of(n, i)] = y_.values[n][i];
        }
      }
    }
  }
  HEDGEROW_TILE void store_rows(const Sums<S::kHeadDim>& sums, Bf16* out, std::int64_t stride) {
    store_rounded(queries(),
                  first_row(),
                  sums,
                  out + static_cast<std::int64_t>(tile_) * kTile * stride,
                  stride,
                  this->valid_rows(tile_));
  }

  const ForwardArguments& a_;
};

}  // namespace hedgerow::kernels::cuda
