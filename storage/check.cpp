#include "storage/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "storage/files/file.hpp"
#include "storage/shards/hidden_shard.hpp"

namespace hedgerow::storage {
namespace {

Damage damage_of(const FileRecord& record, const Error& error, const std::string& where) {
  return {record.name, error.kind(), where, error.what()};
}

void check_shard(const std::filesystem::path& path,
                 const FileRecord& record,
                 std::vector<Damage>& damages) {
  const ShardReader reader(path, record);
  std::vector<std::byte> bytes(reader.info().bytes_per_sequence());
  for (std::int64_t i = 0; i < reader.info().num_sequences; ++i) {
    try {
      reader.read(i, bytes);
    } catch (const Error& error) {
      damages.push_back(damage_of(record, error, fmt::format("sequence {}", i)));
    }
  }
}

std::vector<Damage> check_file(const RunLayout& layout, const CommittedFile& file) {
  std::vector<Damage> damages;
  const bool is_shard = file.kind == FileKind::kHiddenShard;
  try {
    const std::filesystem::path path = layout.resolve(file.record.name);
    if (is_shard) {
      check_shard(path, file.record, damages);
    } else {
      verify_file(path, file.record);
    }
  } catch (const Error& error) {
    damages.push_back(
        damage_of(file.record, error, is_shard ? "outside its sequences" : "whole file"));
  }
  return damages;
}

// Threads take the files in order; each file's damage keeps its place.
class Checker {
 public:
  Checker(const RunLayout& layout,
          const std::vector<CommittedFile>& files,
          const CheckProgress& progress)
      : layout_(layout), files_(files), progress_(progress), damages_(files.size()) {
    for (const CommittedFile& file : files) bytes_total_ += file.record.size;
  }

  void work() {
    while (const CommittedFile* file = take()) {
      std::vector<Damage> damages = check_file(layout_, *file);
      const std::lock_guard lock(mutex_);
      damages_[static_cast<std::size_t>(file - files_.data())] = std::move(damages);
      ++result_.files_checked;
      result_.bytes_checked += file->record.size;
      if (progress_ && !result_.stopped && !progress_(result_.bytes_checked, bytes_total_))
        result_.stopped = true;
    }
  }

  CheckResult result() {
    for (std::vector<Damage>& damages : damages_) {
      std::move(damages.begin(), damages.end(), std::back_inserter(result_.damages));
    }
    return std::move(result_);
  }

 private:
  const CommittedFile* take() {
    const std::lock_guard lock(mutex_);
    return result_.stopped || next_ == files_.size() ? nullptr : &files_[next_++];
  }

  const RunLayout& layout_;
  const std::vector<CommittedFile>& files_;
  const CheckProgress& progress_;
  std::uint64_t bytes_total_ = 0;
  std::mutex mutex_;  // guards everything below
  std::size_t next_ = 0;
  std::vector<std::vector<Damage>> damages_;
  CheckResult result_;
};

}  // namespace

void verify_file(const std::filesystem::path& path, const FileRecord& record) {
  if (const std::uint64_t size = File::open_read(path).size(); size != record.size) {
    throw Error(
        ErrorKind::kCorrupt,
        fmt::format(
            "{}: it has {} bytes, the journal recorded {}", record.name, size, record.size));
  }
  if (const Hash128 found = hash_file(path); found != record.root_hash) {
    throw Error(
        ErrorKind::kCorrupt,
        fmt::format(
            "{}: hash {} != recorded {}", record.name, found.hex(), record.root_hash.hex()));
  }
}

CheckResult check_run(const RunLayout& layout,
                      const std::vector<CommittedFile>& files,
                      int num_threads,
                      const CheckProgress& progress) {
  Checker checker(layout, files, progress);
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back([&checker] { checker.work(); });
    checker.work();
  }
  return checker.result();
}

}  // namespace hedgerow::storage
