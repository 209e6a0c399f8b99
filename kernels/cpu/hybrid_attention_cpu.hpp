// The fused CPU backend of the hybrid: one task a (batch, head), or a segment of one where heads
// are few, walking the sequence in chunks of W tokens with tiles that stay in the L2 cache.
// kernels/README.md draws one head's walk. Called by hybrid_attention.cpp, which checks and owns
// autograd.
#pragma once

#include <algorithm>

#include "kernels/cpu/cpu_tiles.hpp"
#include "kernels/problem/hybrid_problem.hpp"

namespace hedgerow::kernels::cpu {

// The problem, and how this processor walks it.
struct TiledProblem : kernels::HybridProblem {
  Products products = Products::kFloat;
  // What a forward's recall cache holds after each choice (recall_choices()); undefined: no cache.
  at::Tensor recalled = {};

  // Queries are walked in chunks; the state before chunk c holds the keys of the chunks before c -
  // state_lag().
  [[nodiscard]] std::int64_t chunk() const {
    // A window beyond the sequence is no reason for scratch of its size.
    return windowed() ? std::min(options.window_size, std::max<std::int64_t>(shape.T, 1))
                      : kPlainChunk;
  }
  [[nodiscard]] std::int64_t num_chunks() const { return (shape.T + chunk() - 1) / chunk(); }
  [[nodiscard]] std::int64_t state_lag() const { return windowed() ? 1 : 0; }
  // Chunks are walked in segments (hybrid_segments_cpu.hpp).
  [[nodiscard]] std::int64_t chunks_per_segment() const {
    return std::max(kLeastChunksPerSegment, kSegmentTokens / chunk());
  }
  [[nodiscard]] std::int64_t num_segments() const {
    return (num_chunks() + chunks_per_segment() - 1) / chunks_per_segment();
  }
  [[nodiscard]] std::int64_t tile_lanes() const {
    return padded(std::min({chunk(), kQueryTile, shape.T}));
  }
  [[nodiscard]] std::int64_t chunk_lanes() const { return padded(std::min(chunk(), shape.T)); }

  // Short enough for a segment's scratch to stay in the caches, long enough for the chunk that a
  // segment's backward walks a second time not to matter.
  static constexpr std::int64_t kSegmentTokens = 1024, kLeastChunksPerSegment = 16;
  static constexpr std::int64_t kPlainChunk = 64;  // without a window the chunk is free
  static constexpr std::int64_t kQueryTile =
      64;  // queries a tile: 128 keys x 64 queries of scores are 32 KB
};

// The problem with the products that suit this processor and the map.
TiledProblem on_cpu(const kernels::HybridProblem& problem);

// Makes the choices of options.recall_cache itself. Its backward knows no cache.
HybridForward hybrid_forward_cpu(const TiledProblem& problem, bool keep_for_backward);
// (S, z) at the inner borders of each head's segments, fp32 (hybrid_segments_cpu.hpp): the one
// entry of `saved`, the same bytes. Undefined with one segment.
at::Tensor sum_states(const TiledProblem& problem);
// Without an entry in `forward.saved`, which the operators of kernels/ops do not carry, the states
// are summed again.
HybridGradients hybrid_backward_cpu(const TiledProblem& problem,
                                    const HybridForward& forward,
                                    const at::Tensor& dy,
                                    const HybridNeeds& needs);

}  // namespace hedgerow::kernels::cpu
