// Tiles of bf16 in shared memory, fragments in registers, and the products of the two. A warp works
// on 16 rows of a left factor; which of its operands lie transposed in memory is part of a
// product's name, so that no tile is ever stored twice.
//
// Tiles are swizzled: the 16-byte unit u of row r lies at u ^ (r & 7), so that the eight rows which
// one ldmatrix reads at one column lie in different banks. (Rows of 64 bytes: u ^ (r / 2 & 3).)
#pragma once

#include "kernels/cuda/tile/hybrid_arguments.hpp"
#include "kernels/cuda/tile/warp.cuh"

namespace hedgerow::kernels::cuda {

inline constexpr int kWarpRows = 16;  // rows of a fragment
inline constexpr int kUnit = 8;       // bf16 in 16 bytes
inline constexpr float kLog2E = 1.44269504088896341F;

template <int kColumns>
struct Tile {
  static_assert(kColumns % 32 == 0, "a row is a whole number of swizzled groups");
  static constexpr int kUnits = kColumns / kUnit;

  Bf16* data;

  HEDGEROW_TILE Bf16* unit(int row, int unit_of_row) const {
    const int key = kUnits >= 8 ? row & 7 : (row >> 1) & 3;
    return data + (row * kUnits + (unit_of_row ^ key)) * kUnit;
  }
  // Columns `column` and `column` + 1; column is even.
  HEDGEROW_TILE void store_pair(int row, int column, Word pair) const {
    *reinterpret_cast<Word*>(unit(row, column / kUnit) + column % kUnit) = pair;
  }
  HEDGEROW_TILE Word pair(int row, int column) const {
    return *reinterpret_cast<const Word*>(unit(row, column / kUnit) + column % kUnit);
  }
  HEDGEROW_TILE Bf16 at(int row, int column) const {
    return unit(row, column / kUnit)[column % kUnit];
  }
};

// Rows of bf16 in global memory, each aligned to 16 bytes.
struct GlobalRows {
  const Bf16* data;
  std::int64_t stride;
};

// Starts the copy of rows [0, valid) of `from` into a tile of kRows rows; the rest becomes zeros.
// Every thread of the threadblock takes part.
template <int kRows, int kColumns, int kThreads>
HEDGEROW_TILE void copy_rows(Tile<kColumns> to, GlobalRows from, int valid) {
  constexpr int kUnits = Tile<kColumns>::kUnits;
  HEDGEROW_UNROLL_TWICE
  for (int i = thread(); i < kRows * kUnits; i += kThreads) {
    const int row = i / kUnits, unit = i % kUnits;
    const bool inside = row < valid;
    copy_async(
        to.unit(row, unit), from.data + (inside ? row * from.stride : 0) + unit * kUnit, inside);
  }
}

struct alignas(16) Unit {
  Word words[4];
};
// 16 bytes between shared and global memory.
HEDGEROW_TILE void copy_unit(Bf16* to, const Bf16* from) {
  *reinterpret_cast<Unit*>(to) = *reinterpret_cast<const Unit*>(from);
}

// 16 rows of a left factor whose inner dimension is kDepth.
template <int kDepth>
struct Left {
  static constexpr int kSteps = kDepth / 16;
  Word words[kSteps][4];
};

// 16 rows of fp32 sums.
template <int kColumns>
struct Sums {
  static constexpr int kGroups = kColumns / 8;
  float values[kGroups][4];

  HEDGEROW_TILE void clear() {
    HEDGEROW_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        values[n][i] = 0.0F;
      }
    }
  }
};

// Where value i of group n of a lane's sums lies: row 0..15 of the fragment, column of the matrix.
HEDGEROW_TILE int row_of(int i) { return lane() / 4 + (i / 2) * 8; }
HEDGEROW_TILE int column_of(int n, int i) { return n * 8 + lane() % 4 * 2 + i % 2; }

template <int kColumns>
HEDGEROW_TILE Left<kColumns> as_left(const Sums<kColumns>& sums) {
  Left<kColumns> left;
  HEDGEROW_UNROLL
  for (int step = 0; step < Left<kColumns>::kSteps; ++step) {
    HEDGEROW_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float(&c)[4] = sums.values[2 * step + half];
      left.words[step][2 * half] = pack(c[0], c[1]);
      left.words[step][2 * half + 1] = pack(c[2], c[3]);
    }
  }
  return left;
}

// Rows row .. row + 15, columns 16 step .. of a tile that is stored as the left factor is read.
template <int kColumns>
HEDGEROW_TILE void load_left(Word (&words)[4], Tile<kColumns> tile, int row, int step) {
  const int l = lane();
  load_matrices(words, tile.unit(row + l % 16, 2 * step + l / 16));
}
// The same of the transpose of a tile: the tile's rows are the inner dimension.
template <int kColumns>
HEDGEROW_TILE void load_left_transposed(Word (&words)[4], Tile<kColumns> tile, int row, int step) {
  const int l = lane();
  load_matrices_transposed(words,
                           tile.unit(16 * step + l % 8 + l / 16 * 8, row / kUnit + l / 8 % 2));
}

template <int kDepth>
HEDGEROW_TILE Left<kDepth> load_left(Tile<kDepth> tile, int row) {
  Left<kDepth> left;
  HEDGEROW_UNROLL
  for (int step = 0; step < Left<kDepth>::kSteps; ++step) {
    load_left(left.words[step], tile, row, step);
  }
  return left;
}

// sums += left right, right stored as it is read: its rows, from first_row on, are the inner
// dimension, its columns, from first_column on, those of the sums.
template <int kColumns, int kStored>
HEDGEROW_TILE void multiply_step(Sums<kColumns>& sums,
                                 const Word (&left)[4],
                                 Tile<kStored> right,
                                 int first_row,
                                 int first_column) {
  const int l = lane();
  HEDGEROW_UNROLL
  for (int n = 0; n < Sums<kColumns>::kGroups; n += 2) {
    Word b[4];
    load_matrices_transposed(b, right.unit(first_row + l % 16, first_column / kUnit + n + l / 16));
    multiply_add(sums.values[n], left, b[0], b[1]);
    multiply_add(sums.values[n + 1], left, b[2], b[3]);
  }
}
template <int kColumns, int kDepth, int kStored>
HEDGEROW_TILE void multiply(Sums<kColumns>& sums,
                            const Left<kDepth>& left,
                            Tile<kStored> right,
                            int first_row = 0,
                            int first_column = 0) {
  HEDGEROW_UNROLL
  for (int step = 0; step < Left<kDepth>::kSteps; ++step) {
    multiply_step(sums, left.words[step], right, first_row + 16 * step, first_column);
  }
}

// sums += left right^T: the stored rows, from first_row on, are the columns of the sums; the stored
// columns are the inner dimension.
template <int kColumns, int kStored>
HEDGEROW_TILE void multiply_transposed_step(
    Sums<kColumns>& sums, const Word (&left)[4], Tile<kStored> right, int first_row, int step) {
  const int l = lane();
  HEDGEROW_UNROLL
  for (int n = 0; n < Sums<kColumns>::kGroups; n += 2) {
    Word b[4];
    load_matrices(b, right.unit(first_row + 8 * n + l % 8 + l / 16 * 8, 2 * step + l / 8 % 2));
    multiply_add(sums.values[n], left, b[0], b[1]);
    multiply_add(sums.values[n + 1], left, b[2], b[3]);
  }
}
template <int kColumns, int kDepth>
HEDGEROW_TILE void multiply_transposed(Sums<kColumns>& sums,
                                       const Left<kDepth>& left,
                                       Tile<kDepth> right,
                                       int first_row = 0) {
  HEDGEROW_UNROLL
  for (int step = 0; step < Left<kDepth>::kSteps; ++step) {
    multiply_transposed_step(sums, left.words[step], right, first_row, step);
  }
}

// The same with 16 rows of a tile as the left factor, never all of them in registers.
template <int kColumns, int kDepth>
HEDGEROW_TILE void multiply_transposed(
    Sums<kColumns>& sums, Tile<kDepth> left, int left_row, Tile<kDepth> right, int first_row = 0) {
  HEDGEROW_UNROLL_TWICE
  for (int step = 0; step < Left<kDepth>::kSteps; ++step) {
    Word words[4];
    load_left(words, left, left_row, step);
    multiply_transposed_step(sums, words, right, first_row, step);
  }
}
template <int kColumns, int kDepth, int kStored>
HEDGEROW_TILE void multiply(Sums<kColumns>& sums,
                            Tile<kDepth> left,
                            int left_row,
                            Tile<kStored> right,
                            int first_column = 0) {
  HEDGEROW_UNROLL_TWICE
  for (int step = 0; step < Left<kDepth>::kSteps; ++step) {
    Word words[4];
    load_left(words, left, left_row, step);
    multiply_step(sums, words, right, 16 * step, first_column);
  }
}

// The two rows of a lane's sums.
struct RowPair {
  float values[2];
};

HEDGEROW_TILE float sum_of_lanes(float x, int lanes) {  // every lane has the sum of its `lanes`
  HEDGEROW_UNROLL
  for (int mask = 1; mask < lanes; mask *= 2) {
    x += shuffle_xor(x, mask);
  }
  return x;
}

HEDGEROW_TILE RowPair row_sums_of_quad(RowPair rows) {
  HEDGEROW_UNROLL
  for (int r = 0; r < 2; ++r) {
    rows.values[r] += shuffle_xor(rows.values[r], 1);
    rows.values[r] += shuffle_xor(rows.values[r], 2);
  }
  return rows;
}
HEDGEROW_TILE RowPair row_maxima_of_quad(RowPair rows) {
  HEDGEROW_UNROLL
  for (int r = 0; r < 2; ++r) {
    HEDGEROW_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) {
      const float other = shuffle_xor(rows.values[r], mask);
      rows.values[r] = other > rows.values[r] ? other : rows.values[r];
    }
  }
  return rows;
}

// 16 rows of sums as bf16 into rows row .. of a tile.
template <int kColumns, int kStored>
HEDGEROW_TILE void store_sums(Tile<kStored> tile,
                              const Sums<kColumns>& sums,
                              int row,
                              int first_column = 0) {
  HEDGEROW_UNROLL
  for (int n = 0; n < Sums<kColumns>::kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int half = 0; half < 2; ++half) {
      tile.store_pair(row + row_of(2 * half),
                      first_column + column_of(n, 0),
                      pack(sums.values[n][2 * half], sums.values[n][2 * half + 1]));
    }
  }
}

// A warp's rows row .. row + 15 of a tile to rows of global memory, 16 bytes at a time, those below
// `valid` only; and back, each lane what it wrote itself.
template <int kColumns>
HEDGEROW_TILE void copy_rows_out(
    Tile<kColumns> tile, int row, Bf16* out, std::int64_t stride, int valid) {
  constexpr int kUnits = Tile<kColumns>::kUnits;
  for (int i = lane(); i < kWarpRows * kUnits; i += 32) {
    const int r = row + i / kUnits, unit = i % kUnits;
    if (r < valid) {
      copy_unit(out + r * stride + unit * kUnit, tile.unit(r, unit));
    }
  }
}
template <int kColumns>
HEDGEROW_TILE void copy_rows_back(
    Tile<kColumns> tile, int row, const Bf16* out, std::int64_t stride, int valid) {
  constexpr int kUnits = Tile<kColumns>::kUnits;
  for (int i = lane(); i < kWarpRows * kUnits; i += 32) {
    const int r = row + i / kUnits, unit = i % kUnits;
    if (r < valid) {
      copy_unit(tile.unit(r, unit), out + r * stride + unit * kUnit);
    }
  }
}

// 16 rows of sums as bf16 rows of global memory, through the warp's rows of a tile that no other
// warp reads any more.
template <int kColumns>
HEDGEROW_TILE void store_rounded(Tile<kColumns> staged,
                                 int row,
                                 const Sums<kColumns>& sums,
                                 Bf16* out,
                                 std::int64_t stride,
                                 int valid) {
  sync_warp();
  store_sums(staged, sums, row);
  sync_warp();
  copy_rows_out(staged, row, out, stride, valid);
}

// 16 rows of sums as fp32 rows of `stride` floats.
template <int kColumns>
HEDGEROW_TILE void store_floats(float* out, int stride, const Sums<kColumns>& sums) {
  HEDGEROW_UNROLL
  for (int n = 0; n < Sums<kColumns>::kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      out[row_of(i) * stride + column_of(n, i)] = sums.values[n][i];
    }
  }
}

}  // namespace hedgerow::kernels::cuda
