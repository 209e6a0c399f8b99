// The files of a run's logits task as finetune reads them: any sequence, by its number in
// storage::LogitsPlan. One thread. A sequence is read when it is asked for: under a megabyte
// against the seconds of its forward pass.
#pragma once

#include <chrono>
#include <map>
#include <vector>

#include "storage/files/run_layout.hpp"
#include "storage/shards/hidden_shard.hpp"
#include "worker/logits/top_logits.hpp"

namespace hedgerow::worker {

class LogitsReader {
 public:
  // Verifies each file of `records` (those of logits/, others are passed over). Throws kUsage when
  // there are none, kNotFound, kCorrupt.
  LogitsReader(const storage::RunLayout& layout,
               const std::vector<storage::FileRecord>& records,
               std::int64_t seq_len,
               std::int64_t vocab_size,
               std::chrono::milliseconds timeout);

  // [T, K] on the CPU. Throws kNotFound naming a sequence that no file holds, kCorrupt, kUsage
  // (another vocabulary).
  [[nodiscard]] TopLogits read(std::int64_t sequence);

 private:
  struct File {
    std::filesystem::path path;
    storage::FileRecord record;
    storage::ShardInfo info;
  };
  storage::ShardReader& open(std::int64_t first_sequence, const File& file);

  std::int64_t seq_len_, vocab_size_;
  std::map<std::int64_t, File> files_;                 // by first sequence
  std::map<std::int64_t, storage::ShardReader> open_;  // likewise, not all of them
};

}  // namespace hedgerow::worker
