// The decode kernels as they are launched: for each its arguments, threads, shared memory, grid and
// what a threadblock runs; and which one takes a head_dim and a number of features.
#pragma once

#include "kernels/cuda/decode/decode_launch.hpp"
#include "kernels/cuda/decode/decode_ring.cuh"
#include "kernels/cuda/decode/decode_state.cuh"
#include "kernels/cuda/decode/decode_step.cuh"
#include "kernels/cuda/tile/shapes.cuh"

namespace hedgerow::kernels::cuda {

template <int kHeadDim, int kRows>
struct DecodeStateKernel {
  using Arguments = DecodeStateArguments;
  using Walk = DecodeStateWalk<kHeadDim, kRows>;
  using Shared = typename Walk::Shared;
  static constexpr int kThreads = Walk::kThreads;
  static constexpr int kThreadblocks = Walk::kThreadblocks;
  static Grid grid(const Arguments& a) {
    return {a.batch.B * a.batch.U * Walk::kSlices / a.slices, 1, 1};
  }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Walk walk(a, shared);
    walk.run(at.x);
  }
};

template <int kHeadDim>
struct DecodeStepKernel {
  using Arguments = DecodeStepArguments;
  using Step = DecodeStep<kHeadDim>;
  using Shared = typename Step::Shared;
  static constexpr int kThreads = Step::kThreads;
  static constexpr int kThreadblocks = Step::kThreadblocks;
  static Grid grid(const Arguments& a) {
    return {a.batch.B * a.batch.G * ((a.batch.group() + a.heads - 1) / a.heads), 1, 1};
  }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Step step(a, shared, at.x);
    step.run();
  }
};

struct DecodeRingKernel {
  using Arguments = DecodeRingArguments;
  struct Shared {};
  static constexpr int kThreads = kRingThreads;
  static Grid grid(const Arguments& a) { return {a.batch.B * a.batch.G / a.kv_heads, 1, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& /*shared*/, Grid at) {
    copy_to_ring(a, at.x);
  }
};

// visit(DecodeStateKernel<...>{}) for a head_dim that has_decode_kernel and its features.
template <typename Visit>
void for_decode_state(int head_dim, int features, const Visit& visit) {
  const auto of_rows = [&]<int kRows>() {
    if (head_dim == 64) {
      visit(DecodeStateKernel<64, kRows>{});
    } else {
      visit(DecodeStateKernel<128, kRows>{});
    }
  };
  if (features <= 64) {
    of_rows.template operator()<4>();
  } else if (features <= 128) {
    of_rows.template operator()<8>();
  } else {
    of_rows.template operator()<16>();
  }
}

// What decode_launch.hpp declares; Backend::run<Kernel>(arguments, stream) starts a kernel.
template <typename Backend>
struct DecodeLaunches {
  static std::size_t shared_bytes(int head_dim, int features) {
    std::size_t bytes = head_dim == 64 ? sizeof(typename DecodeStepKernel<64>::Shared)
                                       : sizeof(typename DecodeStepKernel<128>::Shared);
    for_decode_state(head_dim, features, [&]<typename Kernel>(Kernel) {
      bytes = sizeof(typename Kernel::Shared) > bytes ? sizeof(typename Kernel::Shared) : bytes;
    });
    return bytes;
  }
  static void state(const DecodeStateArguments& a, Stream stream) {
    for_decode_state(a.batch.D, a.batch.F, [&]<typename Kernel>(Kernel) {
      Backend::template run<Kernel>(a, stream);
    });
  }
  static void step(const DecodeStepArguments& a, Stream stream) {
    if (a.batch.D == 64) {
      Backend::template run<DecodeStepKernel<64>>(a, stream);
    } else {
      Backend::template run<DecodeStepKernel<128>>(a, stream);
    }
  }
};

}  // namespace hedgerow::kernels::cuda
