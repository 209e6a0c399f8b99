// One read of q, k and v for attention transfer (attention_transfer.hpp): the teacher's output, the
// student's, their squared difference, and what it sends back to the maps. Of size T x D only
// y_true is written, which the next layer reads, and dn = dy / Z, which the maps' gradients read
// (hybrid_states.cuh, hybrid_backward_queries.cuh, hybrid_backward_keys.cuh).
//
// A tile of 64 queries a threadblock, as in hybrid_tile.cuh: where the window ends with a tile, no
// pair is formed twice. The teacher is softmax_forward.cuh's, bit for bit.
//
// Grid (tiles, B H), the longest rows first; 128 threads. Per query 2 D T + 4 D F + 2 D f FLOPs;
// reads q, S and W once, k and v once a tile of queries; writes 4 D + 8 bytes. kCompact (Forms,
// shapes.cuh): one stage of K and V.
#pragma once

#include "kernels/cuda/hybrid/hybrid_tile.cuh"

namespace hedgerow::kernels::cuda {

template <typename S, bool kCompact>
struct alignas(128) TransferShared {
  using Sizes = TileSizes<S>;
  static constexpr int kStages = kCompact ? 1 : 2;
  Bf16 q[Sizes::kRows];  // then y_true, then dn
  union {
    Bf16 pool[2 * kStages * Sizes::kRows];  // y_true on the way out
    Bf16 linear[Sizes::kLinear];
  };
  float window[Sizes::kRows];  // sum p v of the window
  float state_sum[S::kFeatures];
};

template <typename S, bool kCompact>
class TransferTile : HybridTile<S, TransferShared<S, kCompact>> {
  using Base = HybridTile<S, TransferShared<S, kCompact>>;
  using Base::batch_, Base::head_, Base::tile_, Base::in_, Base::rows_, Base::y_, Base::shared_,
      Base::window_, Base::linear_, Base::first_row, Base::queries, Base::window_value,
      Base::stores_row, Base::token_index, Base::row_index, Base::has_window;

 public:
  using Base::kThreads;
  using Shared = TransferShared<S, kCompact>;

  HEDGEROW_TILE TransferTile(const TransferArguments& arguments, Shared& shared, int tile, int row)
      : Base(arguments, true, shared, tile, row), a_(arguments) {}

  HEDGEROW_TILE void run() {
    this->copy_queries();
    attend();
    store_teacher();
    y_.clear();
    if (this->has_linear()) {
      this->add_linear();
    }
    linear_ = row_sums_of_quad(linear_);
    compare();
  }

 private:
  HEDGEROW_TILE int valid_rows() const { return Base::valid_rows(tile_); }
  HEDGEROW_TILE Bf16* teacher_rows() const {
    return a_.y_true.data + batch_ * a_.y_true.batch + head_ * a_.y_true.head +
           static_cast<std::int64_t>(tile_) * kTile * a_.y_true.token;
  }

  // The window's sums aside, then the teacher's into y_.
  HEDGEROW_TILE void attend() {
    RunningSoftmax softmax =
        this->walk_teacher([&](const RunningSoftmax& window) { put_window_aside(window); });
    finish_softmax(y_, softmax);
  }

  HEDGEROW_TILE void put_window_aside(const RunningSoftmax& softmax) {
    const RowPair gates = rows_.gates(in_, head_);
    window_ = row_sums_of_quad(softmax.sums);
    window_.values[0] *= gates.values[0];
    window_.values[1] *= gates.values[1];
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        window_value(n, i) = gates.values[i / 2] * y_.values[n][i];
      }
    }
  }

  HEDGEROW_TILE void store_teacher() {
    store_rounded(Tile<S::kHeadDim>{shared_.pool},
                  first_row(),
                  y_,
                  teacher_rows(),
                  a_.y_true.token,
                  valid_rows());
    sync_threads();  // W comes to lie where the rows were
  }

  // Loss, dn, beta and t of the warp's rows. y_ holds the linear branch's sums.
  HEDGEROW_TILE void compare() {
    // Q is no longer needed. The rows come back as the teacher rounded them.
    copy_rows_back(queries(), first_row(), teacher_rows(), a_.y_true.token, valid_rows());
    sync_warp();
    RowPair inverse, squared{{0.0F, 0.0F}}, dots{{0.0F, 0.0F}}, totals{{0.0F, 0.0F}};
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      inverse.values[r] = 1.0F / this->denominator(r);
    }
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int r = 0; r < 2; ++r) {
        compare_pair(n, r, inverse.values[r], squared, dots, totals);
      }
    }
    store_sums_of_rows(squared, dots, totals);
    if (a_.dn != nullptr) {
      sync_warp();
      copy_rows_out(queries(),
                    first_row(),
                    a_.dn + (row_index() * in_.T + tile_ * kTile) * S::kHeadDim,
                    S::kHeadDim,
                    valid_rows());
    }
  }

  // Two neighbouring columns of row r; dn takes y_true's place.
  HEDGEROW_TILE void compare_pair(
      int n, int r, float inverse, RowPair& squared, RowPair& dots, RowPair& totals) {
    const int row = first_row() + row_of(2 * r), column = column_of(n, 0);
    const bool inside = rows_.query[r] < in_.T;
    const Word teacher = queries().pair(row, column);
    float student[2], dn[2];
    HEDGEROW_UNROLL
    for (int side = 0; side < 2; ++side) {
      const int i = 2 * r + side;
      const float y_true = unpack(static_cast<Bf16>(side == 0 ? teacher : teacher >> 16));
      const float window = has_window() ? window_value(n, i) : 0.0F, linear = y_.values[n][i];
      student[side] = (window + linear) * inverse;
      const float difference = inside ? student[side] - y_true : 0.0F;
      squared.values[r] += difference * difference;
      dn[side] = a_.factor * difference * inverse;
      // dn.pull with pull = sum_window p (v - y), as in hybrid_forward.cuh.
      const float pull = (linear_.values[r] * window - window_.values[r] * linear) * inverse;
      totals.values[r] += dn[side] * pull;
    }
    const Word pair = pack(dn[0], dn[1]);
    dots.values[r] += unpack(static_cast<Bf16>(pair)) * student[0] +
                      unpack(static_cast<Bf16>(pair >> 16)) * student[1];
    queries().store_pair(row, column, pair);
  }

  HEDGEROW_TILE void store_sums_of_rows(RowPair squared, RowPair dots, RowPair totals) {
    dots = row_sums_of_quad(dots);
    totals = row_sums_of_quad(totals);
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (a_.dn != nullptr && stores_row(r)) {
        a_.beta[token_index(r)] = -dots.values[r];
        if (a_.totals != nullptr) {
          a_.totals[token_index(r)] = totals.values[r];
        }
      }
    }
    float sum = squared.values[0] + squared.values[1];
    sum = sum_of_lanes(sum, 32);
    if (lane() == 0) {
      a_.squared[(row_index() * in_.tiles() + tile_) * 4 + warp()] = sum;
    }
  }

  const TransferArguments& a_;
};

}  // namespace hedgerow::kernels::cuda
