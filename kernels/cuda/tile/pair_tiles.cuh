// The pairs of one tile of 64 queries and one of 64 keys, 16 queries a warp: which are softmax and
// which linear, scores, and the running maximum of a row's window.
#pragma once

#include "kernels/cuda/tile/feature_tiles.cuh"

namespace hedgerow::kernels::cuda {

// The two queries of a lane. Linear keys of a query are one run behind the sinks: one comparison
// finds them, whether there are sinks or not.
struct QueryRows {
  int query[2];   // may lie beyond the last token; then nothing of them is stored
  int linear[2];  // keys `sinks` .. sinks + linear - 1 are linear
  int sinks;

  HEDGEROW_TILE static QueryRows of(const HybridInputs& inputs, int tile, int row) {
    QueryRows rows;
    rows.sinks = inputs.sinks;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      rows.query[r] = tile * kTile + row + row_of(2 * r);
      const int behind = inputs.begin(rows.query[r]) - inputs.sinks;
      rows.linear[r] = behind > 0 ? behind : 0;
    }
    return rows;
  }
  // The rows of the teacher, whose window is the whole sequence.
  HEDGEROW_TILE static QueryRows causal(int tile, int row) {
    QueryRows rows;
    rows.sinks = 0;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      rows.query[r] = tile * kTile + row + row_of(2 * r);
      rows.linear[r] = 0;
    }
    return rows;
  }
  HEDGEROW_TILE bool is_linear(int r, int key) const {
    return static_cast<unsigned>(key - sinks) < static_cast<unsigned>(linear[r]);
  }
  HEDGEROW_TILE bool in_window(int r, int key) const {
    return key <= query[r] && !is_linear(r, key);
  }
  // The head's gate times the window's gain.
  [[nodiscard]] HEDGEROW_TILE RowPair gates(const HybridInputs& inputs, int head) const {
    const float gate = inputs.gate[head];
    return {{gate * inputs.gain(linear[0]), gate * inputs.gain(linear[1])}};
  }
};

// s log2(e) of 16 queries and kKeys keys of a tile from first_key on; -infinity outside the window.
template <int kKeys, int kHeadDim>
HEDGEROW_TILE void window_scores(Sums<kKeys>& scores,
                                 Tile<kHeadDim> queries,
                                 int query_row,
                                 Tile<kHeadDim> keys,
                                 const QueryRows& rows,
                                 int first_row,
                                 int first_key,
                                 float scale_log2) {
  scores.clear();
  multiply_transposed(scores, queries, query_row, keys, first_row);
  HEDGEROW_UNROLL
  for (int n = 0; n < scores.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool inside = rows.in_window(i / 2, first_key + column_of(n, i));
      scores.values[n][i] = inside ? scores.values[n][i] * scale_log2 : minus_infinity();
    }
  }
}

// x where the pair is linear, else 0; x need not be finite elsewhere.
template <int kKeys>
HEDGEROW_TILE void keep_linear(Sums<kKeys>& x, const QueryRows& rows, int first_key) {
  HEDGEROW_UNROLL
  for (int n = 0; n < x.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      x.values[n][i] = rows.is_linear(i / 2, first_key + column_of(n, i)) ? x.values[n][i] : 0.0F;
    }
  }
}

// rows += the sums of a left factor's rows: of the rounded weights that the product reads, so that
// an output is an exact mean of its values.
template <int kDepth>
HEDGEROW_TILE void add_row_sums(RowPair& rows, const Left<kDepth>& left) {
  HEDGEROW_UNROLL
  for (int step = 0; step < left.kSteps; ++step) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Word pair = left.words[step][i];
      rows.values[i % 2] += unpack(static_cast<Bf16>(pair)) + unpack(static_cast<Bf16>(pair >> 16));
    }
  }
}
// The same of weights that no product reads.
template <int kKeys>
HEDGEROW_TILE void add_row_sums(RowPair& rows, const Sums<kKeys>& weights) {
  HEDGEROW_UNROLL
  for (int n = 0; n < weights.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      rows.values[i / 2] += weights.values[n][i];
    }
  }
}
template <int kColumns>
HEDGEROW_TILE void scale_rows(Sums<kColumns>& x, RowPair factors) {
  HEDGEROW_UNROLL
  for (int n = 0; n < x.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      x.values[n][i] *= factors.values[i / 2];
    }
  }
}

// da of window pairs becomes the scores' gradient, scale (p da - [s at the maximum] t / ties), and
// the scores become p = gates e^(s - maximum); both 0 outside the window. shares: t / ties.
template <int kKeys>
HEDGEROW_TILE void score_gradients(Sums<kKeys>& da,
                                   Sums<kKeys>& scores,
                                   RowPair maxima,
                                   RowPair shares,
                                   RowPair gates,
                                   float scale) {
  HEDGEROW_UNROLL
  for (int n = 0; n < da.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float s = scores.values[n][i], maximum = maxima.values[i / 2];
      const bool inside = s != minus_infinity();
      const float p = inside ? gates.values[i / 2] * power_of_two(s - maximum) : 0.0F;
      const float ds = p * da.values[n][i] - (s == maximum ? shares.values[i / 2] : 0.0F);
      scores.values[n][i] = p;
      da.values[n][i] = inside ? scale * ds : 0.0F;
    }
  }
}

// Maximum, number of keys at it, and sum of e^(s - maximum) of the window so far.
struct RunningSoftmax {
  RowPair maxima{{minus_infinity(), minus_infinity()}};
  RowPair ties{{0.0F, 0.0F}};  // of this lane's columns until finish()
  RowPair sums{{0.0F, 0.0F}};  // likewise

  // Takes one tile of scores, which become e^(s - maximum), still to be added to sums; returns what
  // earlier outputs must be multiplied by, as earlier sums have been.
  template <int kKeys>
  HEDGEROW_TILE RowPair take(Sums<kKeys>& scores) {
    RowPair highest = maxima;
    HEDGEROW_UNROLL
    for (int n = 0; n < scores.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float s = scores.values[n][i];
        highest.values[i / 2] = s > highest.values[i / 2] ? s : highest.values[i / 2];
      }
    }
    highest = row_maxima_of_quad(highest);
    RowPair rescale;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      const bool rises = highest.values[r] > maxima.values[r];
      rescale.values[r] = rises ? power_of_two(maxima.values[r] - highest.values[r]) : 1.0F;
      ties.values[r] = rises ? 0.0F : ties.values[r];
      sums.values[r] *= rescale.values[r];
      maxima.values[r] = highest.values[r];
    }
    HEDGEROW_UNROLL
    for (int n = 0; n < scores.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float s = scores.values[n][i];
        ties.values[i / 2] += s == highest.values[i / 2] ? 1.0F : 0.0F;
        // A row without a key yet: its maximum is -infinity, and so is s.
        scores.values[n][i] =
            s == minus_infinity() ? 0.0F : power_of_two(s - highest.values[i / 2]);
      }
    }
    return rescale;
  }
  HEDGEROW_TILE void finish() {
    sums = row_sums_of_quad(sums);
    ties = row_sums_of_quad(ties);
  }
};

}  // namespace hedgerow::kernels::cuda
