// The element-wise kernels as they are launched: for each its arguments, threads, shared memory,
// grid and what a threadblock runs. Grids: a threadblock a row, of SwiGLU (rows, columns / 2,048).
#pragma once

#include "kernels/cuda/elementwise/elementwise_launch.hpp"
#include "kernels/cuda/elementwise/elementwise_rows.cuh"
#include "kernels/cuda/tile/shapes.cuh"

namespace hedgerow::kernels::cuda {

struct NormKernel {
  using Arguments = NormArguments;
  using Shared = RowSums;
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows, 1, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    norm_row(a, shared, at.x);
  }
};

struct NormBackwardKernel {
  using Arguments = NormBackwardArguments;
  using Shared = RowSums;
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows, 1, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    norm_backward_row(a, shared, at.x);
  }
};

template <bool kBackward>
struct SwigluKernel {
  using Arguments = SwigluArguments;
  struct Shared {};
  static constexpr int kThreads = kRowThreads;
  static constexpr int kColumns = kRowThreads * kUnit;
  static Grid grid(const Arguments& a) {
    return {a.rows, (a.columns + kColumns - 1) / kColumns, 1};
  }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& /*shared*/, Grid at) {
    const int column = at.y * kColumns + thread() * kUnit;
    if (column >= a.columns) {
      return;
    }
    if constexpr (kBackward) {
      swiglu_backward_unit(a, at.x, column);
    } else {
      swiglu_unit(a, at.x, column);
    }
  }
};

template <bool kBackward>
struct HeadsKernel {
  using Arguments = HeadsArguments;
  struct Shared {};
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.B * a.T, 1, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& /*shared*/, Grid at) {
    if constexpr (kBackward) {
      split_backward_token(a, at.x);
    } else {
      split_token(a, at.x);
    }
  }
};

}  // namespace hedgerow::kernels::cuda
