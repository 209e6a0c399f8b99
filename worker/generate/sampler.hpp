// The choice of the next token from logits: greedy, or temperature with top-p. The random number of
// a choice depends on (seed, row, position) alone, so that a row's text does not depend on what
// else is in the batch.
#pragma once

#include <cstdint>
#include <span>

namespace hedgerow::worker {

struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy, the first of equal maxima
  double top_p = 1.0;  // keep the smallest set of likeliest tokens that holds this much probability
  std::uint64_t seed = 0;
  void validate() const;  // Throws kUsage
};

[[nodiscard]] std::int64_t sample(std::span<const float> logits,
                                  const SamplingOptions& options,
                                  std::int64_t row,
                                  std::int64_t position);

}  // namespace hedgerow::worker
