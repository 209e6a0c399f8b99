// The hybrid's kernels as they are launched: for each its arguments, threads, shared memory, grid
// and what a threadblock runs.
#pragma once

#include "kernels/cuda/hybrid/hybrid_backward_keys.cuh"
#include "kernels/cuda/hybrid/hybrid_backward_queries.cuh"
#include "kernels/cuda/hybrid/hybrid_forward.cuh"
#include "kernels/cuda/hybrid/hybrid_launch.hpp"
#include "kernels/cuda/hybrid/hybrid_prepare.cuh"
#include "kernels/cuda/hybrid/hybrid_states.cuh"
#include "kernels/cuda/tile/shapes.cuh"

namespace hedgerow::kernels::cuda {

struct PrepareKernel {
  using Arguments = PrepareArguments;
  struct Shared {};
  static constexpr int kThreads = 128;
  static Grid grid(const Arguments& a) { return {(a.T + 3) / 4, a.B * a.H, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& /*shared*/, Grid at) {
    prepare_row(a, at.x, at.y);
  }
};

template <typename S, bool kTotals>
struct StatesKernel {
  using Arguments = StatesArguments;
  using Walk = StatesWalk<S>;
  using Shared = typename Walk::Shared;
  static constexpr int kThreads = Walk::kThreads;
  static Grid grid(const Arguments& a) {
    return {a.segments, S::kHeadDim / Walk::kColumns, a.inputs.B * a.heads};
  }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Walk walk(a, shared, at.x, at.y, at.z);
    walk.template run<kTotals>();
  }
};

template <typename S>
struct ForwardKernel {
  using Arguments = ForwardArguments;
  using Tile = ForwardTile<S>;
  using Shared = typename Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;
  static Grid grid(const Arguments& a) { return {a.inputs.tiles(), a.inputs.B * a.inputs.H, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Tile tile(a, shared, at.x, at.y);
    tile.run();
  }
};

HEDGEROW_BOTH int parts_of(const BackwardArguments& a) {
  return (a.inputs.tiles() + a.tiles_per_part - 1) / a.tiles_per_part;
}

template <typename S, bool kInputs>
struct BackwardQueriesKernel {
  using Arguments = BackwardArguments;
  using Walk = BackwardQueries<S, kInputs>;
  using Shared = typename Walk::Shared;
  static constexpr int kThreads = Walk::kThreads;
  static Grid grid(const Arguments& a) { return {parts_of(a), a.inputs.B * a.inputs.H, 1}; }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Walk walk(a, shared, at.x, at.y);
    walk.run();
  }
};

template <typename S, bool kInputs, bool kCompact>
struct BackwardKeysKernel {
  using Arguments = BackwardArguments;
  using Walk = BackwardKeys<S, kInputs, kCompact>;
  using Shared = typename Walk::Shared;
  static constexpr int kThreads = Walk::kThreads;
  static Grid grid(const Arguments& a) {
    return {parts_of(a), a.inputs.B * (kInputs ? a.inputs.G : a.inputs.U), 1};
  }
  HEDGEROW_TILE static void run(const Arguments& a, Shared& shared, Grid at) {
    Walk walk(a, shared, at.x, at.y);
    walk.run();
  }
};

// Of more than 128 features a small card does not hold the queries' side.
template <typename S, bool kInputs>
using BackwardKeysForms = Forms<BackwardKeysKernel<S, kInputs, false>,
                                BackwardKeysKernel<S, kInputs, true>,
                                S::kFeatures <= 128>;

// The table of one head_dim; Backend::run<Kernel>(arguments, stream) starts a kernel.
template <int kHeadDim, typename Backend>
struct Launches {
  static bool states(KernelShape shape, const StatesArguments& a, Stream stream) {
    return for_shape<kHeadDim>(shape, [&]<typename S>(S) {
      if (a.segments > 1) {
        Backend::template run<StatesKernel<S, true>>(a, stream);
      }
      Backend::template run<StatesKernel<S, false>>(a, stream);
    });
  }
  static bool forward(KernelShape shape, const ForwardArguments& a, Stream stream) {
    return for_shape<kHeadDim>(
        shape, [&]<typename S>(S) { Backend::template run<ForwardKernel<S>>(a, stream); });
  }
  static bool backward_queries(KernelShape shape,
                               bool inputs,
                               const BackwardArguments& a,
                               Stream stream) {
    return for_shape<kHeadDim>(shape, [&]<typename S>(S) {
      if (inputs) {
        Backend::template run<BackwardQueriesKernel<S, true>>(a, stream);
      } else {
        Backend::template run<BackwardQueriesKernel<S, false>>(a, stream);
      }
    });
  }
  static bool backward_keys(KernelShape shape,
                            bool inputs,
                            const BackwardArguments& a,
                            Stream stream) {
    return for_shape<kHeadDim>(shape, [&]<typename S>(S) {
      if (inputs) {
        BackwardKeysForms<S, true>::template run<Backend>(a, stream);
      } else {
        BackwardKeysForms<S, false>::template run<Backend>(a, stream);
      }
    });
  }
  static std::size_t shared_bytes(KernelShape shape, bool inputs, std::size_t limit) {
    std::size_t bytes = 0;
    for_shape<kHeadDim>(shape, [&]<typename S>(S) {
      const std::size_t sizes[] = {sizeof(typename StatesKernel<S, false>::Shared),
                                   sizeof(typename ForwardKernel<S>::Shared),
                                   inputs
                                       ? sizeof(typename BackwardQueriesKernel<S, true>::Shared)
                                       : sizeof(typename BackwardQueriesKernel<S, false>::Shared),
                                   inputs ? BackwardKeysForms<S, true>::bytes(limit)
                                          : BackwardKeysForms<S, false>::bytes(limit)};
      for (const std::size_t size : sizes) {
        bytes = size > bytes ? size : bytes;
      }
    });
    return bytes;
  }
  static constexpr LaunchTable table() {
    return {&states, &forward, &backward_queries, &backward_keys, &shared_bytes};
  }
};

}  // namespace hedgerow::kernels::cuda
