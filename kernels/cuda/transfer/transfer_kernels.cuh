// The teacher's kernel and attention transfer's as they are launched; see hybrid_kernels.cuh.
#pragma once

#include "kernels/cuda/tile/shapes.cuh"
#include "kernels/cuda/transfer/transfer_forward.cuh"
#include "kernels/cuda/transfer/transfer_launch.hpp"

namespace hedgerow::kernels::cuda {

template <int kHeadDim>
struct SoftmaxKernel {
  using Arguments = SoftmaxArguments;
  using Tile = SoftmaxTile<kHeadDim>;
  using Shared = typename Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;
  static Grid grid(const Arguments& a) { return {(a.T + kTile - 1) / kTile, a.B * a.H, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Tile::run(a, shared, (a.T + kTile - 1) / kTile - 1 - at.x, at.y);
  }
};

template <typename S, bool kCompact>
struct TransferKernel {
  using Arguments = TransferArguments;
  using Tile = TransferTile<S, kCompact>;
  using Shared = typename Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;
  static Grid grid(const Arguments& a) { return {a.inputs.tiles(), a.inputs.B * a.inputs.H, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Tile tile(a, shared, a.inputs.tiles() - 1 - at.x, at.y);
    tile.run();
  }
};

// A small card does not hold the backward of maps with more columns, compact or not.
template <typename S>
using TransferForms =
    Forms<TransferKernel<S, false>, TransferKernel<S, true>, S::kProjected <= kTile>;

template <int kHeadDim, typename Backend>
struct TransferLaunches {
  static void softmax(const SoftmaxArguments& a, Stream stream) {
    Backend::template run<SoftmaxKernel<kHeadDim>>(a, stream);
  }
  static bool transfer(KernelShape shape, const TransferArguments& a, Stream stream) {
    return for_shape<kHeadDim>(
        shape, [&]<typename S>(S) { TransferForms<S>::template run<Backend>(a, stream); });
  }
  static std::size_t shared_bytes(KernelShape shape, std::size_t limit) {
    std::size_t bytes = 0;
    for_shape<kHeadDim>(shape, [&]<typename S>(S) { bytes = TransferForms<S>::bytes(limit); });
    return bytes;
  }
  static constexpr TransferLaunchTable table() { return {&softmax, &transfer, &shared_bytes}; }
};

}  // namespace hedgerow::kernels::cuda
