// Associative recall (000 section B.1 and table 4): a sequence is a list of keys with their values,
// "c 9 k 8 j 3 .. c", whose last token is a key that was seen; the next token is its value. Half of
// the vocabulary are keys, half values, and each sequence draws its own value for each key.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/laboratory/training.hpp"

namespace hedgerow::worker::laboratory {

struct RecallOptions {
  std::int64_t vocab_size = 40;
  std::int64_t length = 128;        // with the value that is asked for; even
  std::int64_t short_length = 32;   // of the first short_steps' sequences, of as many tokens in all
  std::int64_t short_steps = 0;     // a score always has `length`
  std::int64_t score_batch = 500;   // sequences of a score
  std::uint64_t score_seed = 4242;  // which no training batch has

  void validate() const;  // throws kUsage naming the field
};

struct RecallBatch {
  at::Tensor ids;       // int64 [B, length - 1]
  at::Tensor targets;   // int64 [B, length - 1]: the next token
  at::Tensor is_asked;  // bool [B, length - 1]: keys that were seen before; the last one always
};

[[nodiscard]] RecallBatch draw_recall(const RecallOptions& options,
                                      std::int64_t batch_size,
                                      at::Generator& generator);

// Loss: cross-entropy at all keys seen before. Score: how often the last token's value is the most
// likely token, 0 to 1.
[[nodiscard]] TrainingTask recall_task(const RecallOptions& options);

}  // namespace hedgerow::worker::laboratory
