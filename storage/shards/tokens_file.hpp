// Tokenized text: tokens/{transfer,finetune,evaluate}.h5, written by
// deploy/huggingface/make_tokens.py (h5py) or by `hedgerow import`, read here. Format:
// storage/README.md "Tokens file".
//   /input_ids        int32 [sequences, seq_len]
//   /loss_mask        uint8 [sequences, seq_len]   1 where the position counts as a target in
//   finetune /document_starts  uint8 [sequences, seq_len]   1 where a document begins attributes of
//   /: hedgerow_format = "tokens/1", num_train (the first sequences; the rest is validation),
//   vocab_size, tokenizer_hash, sources (JSON), content_hash (XXH3-128 hex over the three datasets'
//   bytes in that order)
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/files/file_record.hpp"

namespace hedgerow::storage {

struct TokenSequences {
  std::int64_t num_sequences = 0;
  std::int64_t num_train = 0;
  std::int64_t seq_len = 0;
  std::int64_t vocab_size = 0;
  std::string tokenizer_hash;
  std::string sources;  // JSON text: what it was made from
  std::string content_hash;
  std::vector<std::int32_t> input_ids;        // [num_sequences, seq_len]
  std::vector<std::uint8_t> loss_mask;        // same shape
  std::vector<std::uint8_t> document_starts;  // same shape

  [[nodiscard]] std::span<const std::int32_t> sequence(std::int64_t index) const;
  [[nodiscard]] std::span<const std::uint8_t> mask(std::int64_t index) const;
  [[nodiscard]] std::int64_t num_validation() const { return num_sequences - num_train; }
};

// Loads and verifies a whole tokens file, in this order: size and whole-file hash (where the
// journal's record is given, before HDF5 opens the file), format, layout, content hash, flags,
// token ids. Throws kNotFound, kCorrupt (hashes, layout), kUsage (another format version; "token id
// 49152 at sequence 3, position 17 is outside the vocabulary (49152 entries) ..."); what is damaged
// or foreign with the commands that make it again, of a run's file those of that run.
[[nodiscard]] TokenSequences load_tokens(const std::filesystem::path& path,
                                         std::int64_t model_vocab_size,
                                         const std::optional<FileRecord>& expected = std::nullopt);

// The first of these checks alone.
void verify_tokens(const std::filesystem::path& path, const FileRecord& expected);

// Computes content_hash; fsyncs; removes the file if it cannot be written. Writes `path` directly:
// callers publish.
void write_tokens(const std::filesystem::path& path, const TokenSequences& tokens);

}  // namespace hedgerow::storage
