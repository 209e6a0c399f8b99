// The decode kernels as they are launched: for each its arguments, threads, shared memory, grid and
// what a threadblock runs; and which one takes a head_dim and a number of features.
#pragma once

#include "kernels/cuda/decode/decode_launch.hpp"
#include "kernels/cuda/decode/decode_recall.cuh"
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
struct DecodeRecallKernel {
  using Arguments = DecodeRecallArguments;
  using Choice = DecodeRecall<kHeadDim>;
  using Shared = typename Choice::Shared;
  static constexpr int kThreads = Choice::kThreads;
  static constexpr int kThreadblocks = Choice::kThreadblocks;
  static Grid grid(const Arguments& a) { return {a.batch.B * a.batch.G, 1, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Choice choice(a, shared, at.x);
    choice.run();
  }
};

template <int kHeadDim, bool kRecalls>
struct DecodeStepKernel {
  using Arguments = DecodeStepArguments;
  using Step = DecodeStep<kHeadDim, kRecalls>;
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

// visit<head_dim>() for one that has_decode_kernel.
template <typename Visit>
void for_head_dim(int head_dim, const Visit& visit) {
  if (head_dim == 64) {
    visit.template operator()<64>();
  } else {
    visit.template operator()<128>();
  }
}

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
  static std::size_t shared_bytes(int head_dim, int features, bool recalls) {
    std::size_t bytes = 0;
    const auto need = [&]<typename Kernel>(Kernel) {
      bytes = sizeof(typename Kernel::Shared) > bytes ? sizeof(typename Kernel::Shared) : bytes;
    };
    for_head_dim(head_dim, [&]<int kHeadDim>() {
      need(DecodeStepKernel<kHeadDim, false>{});
      if (recalls) {
        need(DecodeRecallKernel<kHeadDim>{});
      }
    });
    for_decode_state(head_dim, features, need);
    return bytes;
  }
  static void state(const DecodeStateArguments& a, Stream stream) {
    for_decode_state(a.batch.D, a.batch.F, [&]<typename Kernel>(Kernel) {
      Backend::template run<Kernel>(a, stream);
    });
  }
  static void recall(const DecodeRecallArguments& a, Stream stream) {
    for_head_dim(a.batch.D, [&]<int kHeadDim>() {
      Backend::template run<DecodeRecallKernel<kHeadDim>>(a, stream);
    });
  }
  static void step(const DecodeStepArguments& a, Stream stream) {
    for_head_dim(a.batch.D, [&]<int kHeadDim>() {
      if (a.batch.recalled > 0) {
        Backend::template run<DecodeStepKernel<kHeadDim, true>>(a, stream);
      } else {
        Backend::template run<DecodeStepKernel<kHeadDim, false>>(a, stream);
      }
    });
  }
};

}  // namespace hedgerow::kernels::cuda
