// A job made of nothing but storage's promises: publish file i, journal it, acknowledge it; again
// for i = 0, 1, ... It resumes from the journal. Shared by the program that is killed and by the
// tests that judge what it left behind.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "storage/files/run_layout.hpp"
#include "storage/journal/journal.hpp"

namespace hedgerow::tests {

struct CrashJob {
  int num_files = 4;
  std::size_t file_bytes = 3000;
  int snapshot_after = 2;  // files
};

// What file i must hold, whoever wrote it in whatever term.
[[nodiscard]] std::string content_of(const CrashJob& job, int index);

// Runs to the end, or throws storage::Error. `acknowledge(i)` is called once file i is committed.
void run_crash_job(const CrashJob& job,
                   const storage::RunLayout& layout,
                   const std::function<void(int)>& acknowledge);

struct CrashJobState {
  std::vector<std::string> committed;  // names of files 0, 1, ...
  storage::ReplayResult replayed;      // records moved out
};
// The fold of the journal; empty for a run that never began.
[[nodiscard]] CrashJobState read_crash_job(const storage::RunLayout& layout);

// One line a broken promise: committed files out of order, absent or with other bytes, an
// acknowledged file that is not committed, damage that is no torn tail.
[[nodiscard]] std::vector<std::string> judge(const CrashJob& job,
                                             const storage::RunLayout& layout,
                                             int num_acknowledged);

}  // namespace hedgerow::tests
