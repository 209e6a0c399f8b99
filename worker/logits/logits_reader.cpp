#include "worker/logits/logits_reader.hpp"

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr std::size_t kMaxOpenFiles = 64;

// A record of size 0 is of a file that no journal vouches for.
storage::ShardReader open_file(const std::filesystem::path& path,
                               const storage::FileRecord& record) {
  return record.size == 0 ? storage::ShardReader(path) : storage::ShardReader(path, record);
}

}  // namespace

LogitsReader::LogitsReader(const storage::RunLayout& layout,
                           const std::vector<storage::FileRecord>& records,
                           std::int64_t seq_len,
                           std::int64_t vocab_size,
                           std::chrono::milliseconds timeout)
    : seq_len_(seq_len), vocab_size_(vocab_size) {
  for (const storage::FileRecord& record : records) {
    if (!storage::RunLayout::is_logits(record.name)) continue;
    const std::filesystem::path path = layout.resolve(record.name);
    storage::wait_until_visible(path, timeout);
    storage::ShardReader reader = open_file(path, record);
    const storage::ShardInfo info = reader.info();
    if (info.seq_len != seq_len) {
      throw Error(ErrorKind::kCorrupt,
                  record.name + ": logits of sequences of " + std::to_string(info.seq_len) +
                      " tokens, data.finetune's have " + std::to_string(seq_len));
    }
    files_.emplace(info.first_sequence, File{path, record, info});
    if (open_.size() < kMaxOpenFiles) open_.emplace(info.first_sequence, std::move(reader));
  }
  if (files_.empty()) {
    throw Error(ErrorKind::kUsage,
                "finetune.objective needs the teacher's logits, and this run has captured none; "
                "let 'hedgerow run' capture them, or set finetune.objective = \"ce\"");
  }
}

storage::ShardReader& LogitsReader::open(std::int64_t first_sequence, const File& file) {
  const auto found = open_.find(first_sequence);
  if (found != open_.end()) return found->second;
  if (open_.size() >= kMaxOpenFiles) open_.erase(open_.begin());
  return open_.emplace(first_sequence, open_file(file.path, file.record)).first->second;
}

TopLogits LogitsReader::read(std::int64_t sequence) {
  auto file = files_.upper_bound(sequence);
  const bool is_below_all = file == files_.begin();
  if (!is_below_all) --file;
  if (is_below_all || sequence >= file->first + file->second.info.num_sequences) {
    throw Error(ErrorKind::kNotFound,
                "logits: sequence " + std::to_string(sequence) + " is in none of the files");
  }
  const File& found = file->second;
  std::vector<std::byte> bytes(found.info.bytes_per_sequence());
  open(file->first, found).read(sequence - file->first, bytes);
  return decode(bytes, seq_len_, vocab_size_, found.record.name);
}

}  // namespace hedgerow::worker
