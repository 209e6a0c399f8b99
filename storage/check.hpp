// Verifies every byte of a run's committed files against what the journal recorded: the work of
// `hedgerow check`. Reads only; what to do about damage (`lost` events, recomputing) is the
// coordinator's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/files/file_record.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::storage {

// How a FileRecord's root_hash covers its file.
enum class FileKind {
  kHiddenShard,  // root hash outside chunks, a hash for each chunk
  kWhole,        // XXH3-128 of all bytes: tokens, checkpoints, artifacts, adapters, results
};

struct CommittedFile {
  FileKind kind = FileKind::kWhole;
  FileRecord record;
};

struct Damage {
  std::string name;  // as in the record
  ErrorKind kind =
      ErrorKind::kCorrupt;  // kNotFound, kCorrupt: lost; anything else: could not be read now
  std::string where;        // "sequence 12", "outside its sequences", "whole file"
  std::string what;         // the full message
};

struct CheckResult {
  std::vector<Damage> damages;  // in the order of the files
  std::uint64_t files_checked = 0;
  std::uint64_t bytes_checked = 0;
  bool stopped = false;  // `progress` returned false: files after that are unchecked
};

// Reads the whole file and holds its size and hash against the record: what a reader of an artifact
// does before it believes a byte of it. Any thread. Throws kCorrupt, kNotFound, naming the record.
void verify_file(const std::filesystem::path& path, const FileRecord& record);

// Called after each file, from one thread at a time; false stops.
using CheckProgress = std::function<bool(std::uint64_t bytes_done, std::uint64_t bytes_total)>;

// Files are spread over `num_threads` threads. Does not throw for a damaged file.
[[nodiscard]] CheckResult check_run(const RunLayout& layout,
                                    const std::vector<CommittedFile>& files,
                                    int num_threads = 4,
                                    const CheckProgress& progress = {});

}  // namespace hedgerow::storage
