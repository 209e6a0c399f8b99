#include "storage/recipe/capture_plan.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "storage/base/error.hpp"
#include "storage/base/philox.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::int64_t kBytesPerMib = 1 << 20;
constexpr std::int64_t kShuffleWindow = 1024;  // sequences
constexpr std::int64_t kFloat = 4;             // bytes
// Limits of one file of logits that is computed from tokens.
constexpr std::int64_t kLogitsGroupBytes = std::int64_t{1} << 30;
constexpr std::int64_t kSequencesPerLogits = 64;
constexpr std::int64_t kRepeatedShare = 20;  // a twentieth of what was captured may come twice
// The third word of the shuffle's random streams: the order of windows, then each window's own.
constexpr std::uint32_t kWindowOrder = 0xFFFFFFFF;
constexpr std::uint32_t kShuffleStream =
    0x73687566;  // keeps clear of the streams that start the feature maps

std::vector<std::int64_t> permutation(std::int64_t size, PhiloxStream random) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.uniform() * static_cast<double>(i))]);
  }
  return order;
}

// Positions begin .. begin+count-1 of an epoch's shuffled order of 0 .. num_train-1.
std::vector<std::int64_t> shuffled(std::uint64_t seed,
                                   std::int64_t epoch,
                                   std::int64_t num_train,
                                   std::int64_t begin,
                                   std::int64_t count) {
  const auto stream = [&](std::uint32_t part) {
    return PhiloxStream(seed, kShuffleStream, static_cast<std::uint32_t>(epoch), part);
  };
  const std::int64_t num_windows = (num_train + kShuffleWindow - 1) / kShuffleWindow;
  std::vector<std::int64_t> result;
  std::int64_t position = 0;
  for (const std::int64_t window : permutation(num_windows, stream(kWindowOrder))) {
    const std::int64_t first = window * kShuffleWindow;
    const std::int64_t size = std::min(kShuffleWindow, num_train - first);
    if (position + size > begin && position < begin + count) {
      const std::vector<std::int64_t> order =
          permutation(size, stream(static_cast<std::uint32_t>(window)));
      const std::int64_t from = std::max(begin - position, std::int64_t{0});
      const std::int64_t to = std::min(begin + count - position, size);
      for (std::int64_t i = from; i < to; ++i)
        result.push_back(first + order[static_cast<std::size_t>(i)]);
    }
    position += size;
  }
  return result;
}

std::int64_t bytes_of(const std::string& shard_dtype) { return shard_dtype == "fp32" ? 4 : 2; }

}  // namespace

int CapturePlan::num_shards() const {
  return static_cast<int>((num_sequences() + sequences_per_shard - 1) / sequences_per_shard);
}

std::int64_t CapturePlan::shard_size(int shard) const {
  return std::min(sequences_per_shard, num_sequences() - shard_begin(shard));
}

std::int64_t CapturePlan::token_sequence(std::int64_t capture_index) const {
  if (capture_index < 0 || capture_index >= num_sequences()) {
    throw Error(ErrorKind::kInternal,
                "capture index " + std::to_string(capture_index) + " of " +
                    std::to_string(num_sequences()));
  }
  return capture_index < num_train ? capture_index : validation_begin + capture_index - num_train;
}

std::int64_t visited_sequences(const Recipe& recipe, DataStage stage) {
  return stage == DataStage::kTransfer
             ? std::int64_t{recipe.transfer.max_steps} * recipe.transfer.sequences_per_step
             : std::int64_t{recipe.finetune.max_steps} * recipe.finetune.sequences_per_step;
}

CapturePlan make_capture_plan(const Recipe& recipe,
                              std::int64_t tokens_num_train,
                              std::int64_t tokens_num_sequences,
                              std::int64_t hidden_size) {
  const std::int64_t per_step = recipe.transfer.sequences_per_step;
  const std::int64_t budget = visited_sequences(recipe, DataStage::kTransfer);
  CapturePlan plan;
  plan.num_train = std::min(budget, tokens_num_train / per_step * per_step);
  if (plan.num_train == 0 && budget > 0) {
    throw Error(ErrorKind::kUsage,
                "tokens/transfer.h5 has " + std::to_string(tokens_num_train) +
                    " training sequences, but one step takes " + std::to_string(per_step) +
                    "; give data.transfer more text, or a smaller seq_len");
  }
  plan.num_validation = std::min<std::int64_t>(recipe.transfer.validation_sequences,
                                               tokens_num_sequences - tokens_num_train);
  if (plan.num_validation <= 0) {
    throw Error(
        ErrorKind::kUsage,
        "tokens/transfer.h5 has no validation sequences; raise data.transfer.validation_sequences");
  }
  plan.validation_begin = tokens_num_train;
  plan.sequences_per_forward = recipe.plan.sequences_per_forward;
  const std::int64_t bytes_per_sequence =
      std::int64_t{recipe.data_transfer.seq_len} * hidden_size * bytes_of(recipe.plan.shard_dtype);
  const std::int64_t fitting = recipe.plan.shard_mib * kBytesPerMib / bytes_per_sequence;
  plan.sequences_per_shard =
      std::max(fitting / plan.sequences_per_forward, std::int64_t{1}) * plan.sequences_per_forward;
  return plan;
}

LogitsPlan make_logits_plan(const Recipe& recipe,
                            const CapturePlan& capture,
                            std::int64_t tokens_num_train,
                            std::int64_t tokens_num_sequences,
                            std::int64_t hidden_size) {
  const std::int64_t per_step = recipe.finetune.sequences_per_step;
  const std::int64_t budget = visited_sequences(recipe, DataStage::kFinetune);
  const std::int64_t visited = std::min(budget, tokens_num_train / per_step * per_step);
  // Where the last stage visits more of the text than was captured, it does not repeat that; unless
  // it is the odd step more, for which the teacher would run over all of the text again.
  const bool are_captured = recipe.finetune.repeat_captured ||
                            visited - capture.num_train <= capture.num_train / kRepeatedShare;
  if (recipe.data_finetune == recipe.data_transfer && visited > 0 && are_captured) {
    if (capture.num_train < per_step) {
      throw Error(ErrorKind::kUsage,
                  "finetune.sequences_per_step = " + std::to_string(per_step) +
                      ", but the transfer captures " + std::to_string(capture.num_train) +
                      " training sequences, which finetune.repeat_captured leaves it; raise "
                      "transfer.max_steps, or set it to false");
    }
    return {true, capture};
  }
  LogitsPlan plan;
  CapturePlan& sequences = plan.sequences;
  sequences.num_train = visited;
  if (sequences.num_train == 0) {
    throw Error(ErrorKind::kUsage,
                "tokens/finetune.h5 has " + std::to_string(tokens_num_train) +
                    " training sequences, but one step takes " + std::to_string(per_step) +
                    "; give data.finetune more text, or a smaller seq_len");
  }
  sequences.num_validation = tokens_num_sequences - tokens_num_train;
  sequences.validation_begin = tokens_num_train;
  // One pass of all layers over the residual streams of a file's sequences, which stay in memory.
  const std::int64_t stream = std::int64_t{recipe.data_finetune.seq_len} * hidden_size * kFloat;
  const std::int64_t fitting = std::max<std::int64_t>(1, kLogitsGroupBytes / stream);
  sequences.sequences_per_shard = std::min(fitting, kSequencesPerLogits);
  return plan;
}

std::vector<std::int64_t> step_sequences(const Recipe& recipe,
                                         const CapturePlan& plan,
                                         std::int64_t step) {
  const std::int64_t count = recipe.transfer.sequences_per_step;
  const std::int64_t steps_per_epoch = plan.num_train / count;
  const std::int64_t epoch = step / steps_per_epoch;
  const std::int64_t begin = step % steps_per_epoch * count;
  if (recipe.transfer.shuffle) return shuffled(recipe.seed, epoch, plan.num_train, begin, count);
  std::vector<std::int64_t> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), begin);
  return result;
}

}  // namespace hedgerow::storage
