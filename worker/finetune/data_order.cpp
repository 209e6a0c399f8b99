#include "worker/finetune/data_order.hpp"

#include <numeric>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/base/philox.hpp"

namespace hedgerow::worker {
namespace {

// Philox stream family of the data order, apart from those of parameters at the same seed.
constexpr std::uint32_t kOrderStream = 0x6f726465;

}  // namespace

DataOrder::DataOrder(std::uint64_t seed, std::int64_t num_train, std::int64_t sequences_per_step)
    : seed_(seed), num_train_(num_train), sequences_per_step_(sequences_per_step) {
  if (num_train < sequences_per_step) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         "tokens/finetune.h5 holds " + std::to_string(num_train) +
                             " training sequences, but a step visits " +
                             std::to_string(sequences_per_step) +
                             "; give data.finetune more text or lower finetune.sequences_per_step");
  }
}

std::vector<std::int64_t> DataOrder::step(std::int64_t step) {
  const std::int64_t steps_per_epoch = num_train_ / sequences_per_step_;
  if (const std::int64_t epoch = step / steps_per_epoch; epoch != epoch_) {
    permutation_.resize(static_cast<std::size_t>(num_train_));
    std::iota(permutation_.begin(), permutation_.end(), 0);
    storage::PhiloxStream stream(seed_, kOrderStream, static_cast<std::uint32_t>(epoch), 0);
    for (std::size_t i = permutation_.size() - 1; i > 0; --i) {
      std::swap(
          permutation_[i],
          permutation_[static_cast<std::size_t>(stream.uniform() * static_cast<double>(i + 1))]);
    }
    epoch_ = epoch;
  }
  const auto begin = permutation_.begin() + (step % steps_per_epoch) * sequences_per_step_;
  return {begin, begin + sequences_per_step_};
}

}  // namespace hedgerow::worker
