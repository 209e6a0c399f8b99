// Which sequences a job captures and in what order: pure arithmetic shared by the coordinator
// (shards, disk) and the worker (what to read). Capture index c = 0.. counts the training sequences
// that the step budget visits, then the validation sequences; shards and canonical forwards are cut
// from that index, each starting at a multiple of sequences_per_forward, so that a sequence is
// always computed at one shape.
#pragma once

#include <cstdint>
#include <vector>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::storage {

struct CapturePlan {
  // Captured training sequences: 0..num_train-1 of the tokens file; a multiple of
  // sequences_per_step.
  std::int64_t num_train = 0;
  std::int64_t num_validation = 0;    // captured validation sequences
  std::int64_t validation_begin = 0;  // index of the first one in the tokens file
  std::int64_t sequences_per_forward = 1;
  std::int64_t sequences_per_shard = 1;  // a multiple of sequences_per_forward

  [[nodiscard]] std::int64_t num_sequences() const { return num_train + num_validation; }
  [[nodiscard]] int num_shards() const;
  [[nodiscard]] std::int64_t shard_begin(int shard) const { return shard * sequences_per_shard; }
  [[nodiscard]] std::int64_t shard_size(int shard) const;  // the last one may be short
  [[nodiscard]] std::int64_t token_sequence(std::int64_t capture_index) const;
  [[nodiscard]] std::int64_t validation_capture_index(std::int64_t i) const {
    return num_train + i;
  }
};

// The most training sequences that a stage which trains visits, transfer or finetune: no more text
// is tokenized for it.
[[nodiscard]] std::int64_t visited_sequences(const Recipe& recipe, DataStage stage);

// Throws kUsage when the tokens cannot serve the recipe (no training sequence, seq_len mismatch is
// the caller's).
[[nodiscard]] CapturePlan make_capture_plan(const Recipe& recipe,
                                            std::int64_t tokens_num_train,
                                            std::int64_t tokens_num_sequences,
                                            std::int64_t hidden_size);

// The sequences of which finetune learns from the teacher's logits, in their own numbering: the
// training sequences that it visits, then validation. Finetune draws its steps from these alone.
struct LogitsPlan {
  // The finetune text is the transfer's: the sequences are those that were captured, numbered by
  // capture index, and the logits are computed from the last boundary instead of from the tokens.
  bool from_boundary = false;
  // sequences_per_shard: of one file, where they are not those of a capture task.
  CapturePlan sequences;
};

// The plan of a recipe whose finetune.objective needs logits. `capture` is the run's, tokens_*
// count data.finetune's file. Throws kUsage when the tokens cannot serve the recipe.
[[nodiscard]] LogitsPlan make_logits_plan(const Recipe& recipe,
                                          const CapturePlan& capture,
                                          std::int64_t tokens_num_train,
                                          std::int64_t tokens_num_sequences,
                                          std::int64_t hidden_size);

// The order in which step `step` of a layer visits training capture indices: sequences_per_step of
// them. File order, or with recipe.transfer.shuffle windows of 1,024 permuted by Philox keyed by
// (seed, epoch); an epoch's tail that does not fill a step is dropped.
[[nodiscard]] std::vector<std::int64_t> step_sequences(const Recipe& recipe,
                                                       const CapturePlan& plan,
                                                       std::int64_t step);

// Bytes of one position of a file of logits (storage/README.md "Logits").
[[nodiscard]] constexpr std::int64_t logits_bytes(int top_k) { return 6 * std::int64_t{top_k} + 4; }

}  // namespace hedgerow::storage
