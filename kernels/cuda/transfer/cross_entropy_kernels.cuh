// The cross-entropy's kernels as they are launched; see hybrid_kernels.cuh.
#pragma once

#include "kernels/cuda/tile/shapes.cuh"
#include "kernels/cuda/transfer/cross_entropy_backward.cuh"
#include "kernels/cuda/transfer/cross_entropy_launch.hpp"
#include "kernels/cuda/transfer/cross_entropy_rows.cuh"

namespace hedgerow::kernels::cuda {

template <typename S>
struct CrossEntropyKernel {
  using Arguments = CrossEntropyArguments;
  using Tile = CrossEntropyTile<S>;
  using Shared = typename Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;
  static Grid grid(const Arguments& a) { return {a.inputs.tiles(), a.inputs.B * a.inputs.H, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Tile tile(a, shared, a.inputs.tiles() - 1 - at.x, at.y);
    tile.run();
  }
};

template <typename S, Side kSide>
struct CrossEntropyBackwardKernel {
  using Arguments = CrossEntropyBackwardArguments;
  using Walk = CrossEntropyBackward<S, kSide>;
  using Shared = typename Walk::Shared;
  static constexpr int kThreads = Walk::kThreads;
  static Grid grid(const Arguments& a) {
    const int parts = (a.inputs.tiles() + a.tiles_per_part - 1) / a.tiles_per_part;
    return {parts, a.inputs.B * (kSide == Side::kQueries ? a.inputs.H : a.inputs.U), 1};
  }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Walk walk(a, shared, at.x, at.y);
    walk.run();
  }
};

template <int kHeadDim, typename Backend>
struct CrossEntropyLaunches {
  static bool rows(KernelShape shape, const CrossEntropyArguments& a, Stream stream) {
    return for_shape<kHeadDim>(
        shape, [&]<typename S>(S) { Backend::template run<CrossEntropyKernel<S>>(a, stream); });
  }
  static bool backward(KernelShape shape,
                       Side side,
                       const CrossEntropyBackwardArguments& a,
                       Stream stream) {
    return for_shape<kHeadDim>(shape, [&]<typename S>(S) {
      if (side == Side::kQueries) {
        Backend::template run<CrossEntropyBackwardKernel<S, Side::kQueries>>(a, stream);
      } else {
        Backend::template run<CrossEntropyBackwardKernel<S, Side::kKeys>>(a, stream);
      }
    });
  }
  static std::size_t shared_bytes(KernelShape shape) {
    std::size_t bytes = 0;
    for_shape<kHeadDim>(shape, [&]<typename S>(S) {
      const std::size_t rows = sizeof(CrossEntropyShared<S>);
      const std::size_t backward = sizeof(typename CrossEntropyBackward<S, Side::kKeys>::Shared);
      bytes = rows > backward ? rows : backward;
    });
    return bytes;
  }
  static constexpr CrossEntropyLaunchTable table() { return {&rows, &backward, &shared_bytes}; }
};

}  // namespace hedgerow::kernels::cuda
