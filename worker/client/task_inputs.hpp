// The input files of a granted task: their list, which travels beside the message when it is long,
// their check, and what is wrong with them. Called on the task's thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "coordinator/wire/task.hpp"
#include "storage/base/error.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::worker {

// `task` with the records of its inputs_file as inputs; unchanged if it names none. Waits up to 90
// s until a network file system shows the file. Throws kNotFound after that, kCorrupt if the file
// is not the one that the coordinator wrote.
[[nodiscard]] wire::Task with_inputs(const storage::RunLayout& layout, wire::Task task);

// Reads the task's inputs that are no shards (a student, an adapter) and holds them against the
// journal's records; shards are held against theirs as they are read. A record without a size (a
// stage that was started by hand) is not asked. Waits `timeout` for each to be seen. Throws
// kNotFound, kCorrupt.
void verify_inputs(const storage::RunLayout& layout,
                   const wire::Task& task,
                   std::chrono::milliseconds timeout);

// Which committed files a failure is about: those of the task's that its message names, and, if one
// was missing, all that are (whatever took one away may have taken more).
[[nodiscard]] std::vector<std::string> damaged_files(const storage::RunLayout& layout,
                                                     const wire::Task& task,
                                                     storage::ErrorKind kind,
                                                     const std::string& message);

}  // namespace hedgerow::worker
