// What one measurement of `bench kernels` must compute and move at the least, by formulas, and what
// it needs to fit in memory. kernels/README.md ("Cost of one head") derives them; GB/s and TFLOP/s
// of the bench are these over the measured time. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/bench/kernel_sweep.hpp"
#include "kernels/hybrid_attention.hpp"

namespace hedgerow::worker::bench {

using measure::BenchDirection;
using measure::BenchDtype;

struct AttentionSize {
  std::int64_t B = 1, H = 1, G = 1, T = 1, D = 64;
  std::int64_t element_bytes = 2;                          // of q, k, v, y and their gradients
  [[nodiscard]] AttentionSize in(BenchDtype dtype) const;  // the same with elements of that dtype
};

struct MapSize {
  std::int64_t F = 64;  // features
  std::int64_t f = 32;  // columns of the layer; 0: none
  kernels::WindowLayout layout = kernels::WindowLayout::kTerraced;
  std::int64_t W = 64;
  std::int64_t S = 0;  // sinks
  storage::KeyMaps key_maps = storage::KeyMaps::kQueryHead;
};

struct Cost {
  double flops = 0;
  double bytes = 0;
};

// Pairs of a query and a key in its window or a sink, over the T queries of one head.
[[nodiscard]] double num_window_pairs(const MapSize& map, std::int64_t T);

// One call in that direction: of decode, one token of each sequence behind T tokens of context.
[[nodiscard]] Cost hybrid_cost(const AttentionSize& size,
                               const MapSize& map,
                               BenchDirection direction);
[[nodiscard]] Cost softmax_cost(const AttentionSize& size, BenchDirection direction);

// Steps of a decode that are timed as one: a terraced ring flushes a chunk every W of them, the
// others do the same in every step. Of wider windows the median leaves the flush out: a few
// percent.
inline constexpr int kMostStepsARound = 4096;
[[nodiscard]] int decode_steps_a_round(const MapSize& map);

// Bytes that a measurement needs at once, as terms of a sum that a message shows.
class MemoryNeed {
 public:
  MemoryNeed& add(const std::string& what, double bytes);
  [[nodiscard]] double bytes() const { return bytes_; }
  // "needs 12.9 GB (inputs 4.3 GB + T x T weights 8.6 GB) of 8.0 GB"
  [[nodiscard]] std::string against(std::uint64_t available) const;
  // A share of the machine is left to everything else.
  [[nodiscard]] bool fits(std::uint64_t available) const;

 private:
  double bytes_ = 0;
  std::string terms_;
};

// q, k, v and dy in both dtypes (CastInputs): what all contenders share.
[[nodiscard]] MemoryNeed shared_need(const AttentionSize& size, BenchDirection direction);
// The hybrid's own: outputs, what it keeps for its backward, gradients, states.
[[nodiscard]] double hybrid_need(const AttentionSize& size,
                                 const MapSize& map,
                                 BenchDirection direction);
// Softmax's own; `is_quadratic`: a backend that holds T x T weights.
[[nodiscard]] double softmax_need(const AttentionSize& size,
                                  BenchDirection direction,
                                  bool is_quadratic);

}  // namespace hedgerow::worker::bench
