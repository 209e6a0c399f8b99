// Which training sequences a finetune step visits: a function of (seed, step) alone, so that a
// resume, at any world size, goes on where the job stopped. Each epoch is a permutation drawn by
// Philox keyed by (seed, epoch); a tail that does not fill a step is dropped.
#pragma once

#include <cstdint>
#include <vector>

namespace hedgerow::worker {

class DataOrder {
 public:
  // Throws kUsage when there are fewer training sequences than a step needs.
  DataOrder(std::uint64_t seed, std::int64_t num_train, std::int64_t sequences_per_step);

  // The sequences of step `step` (from 0), sequences_per_step of them.
  [[nodiscard]] std::vector<std::int64_t> step(std::int64_t step);

 private:
  std::uint64_t seed_;
  std::int64_t num_train_;
  std::int64_t sequences_per_step_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> permutation_;  // of epoch_
};

}  // namespace hedgerow::worker
