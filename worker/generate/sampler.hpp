// The choice of the next token from logits: greedy, or temperature with top-p. The random number of
// a choice depends on (seed, row, position) alone, so that a row's text does not depend on what
// else is in the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace hedgerow::worker {

struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy, the first of equal maxima
  double top_p = 1.0;  // keep the smallest set of likeliest tokens that holds this much probability
  std::uint64_t seed = 0;
  std::int64_t first_row = 0;  // which of all rows row 0 is: a later batch has draws of its own
  void validate() const;  // Throws kUsage
};

[[nodiscard]] std::int64_t sample(std::span<const float> logits,
                                  const SamplingOptions& options,
                                  std::int64_t row,
                                  std::int64_t position);

// The choice of each row of logits [B, V] fp32, as sample() of it with its row and position; -1
// where one of its logits is not finite. On a device the choice is made there: B numbers come to
// the host with temperature 0, else about a thousand weights a row. Weights are summed in another
// order there: a draw that falls within the last bit of a sum may differ from the CPU's.
[[nodiscard]] std::vector<std::int64_t> sample_rows(const at::Tensor& logits,
                                                    const SamplingOptions& options,
                                                    std::span<const std::int64_t> rows,
                                                    std::span<const std::int64_t> positions);

}  // namespace hedgerow::worker
