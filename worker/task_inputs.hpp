// The input list of a granted task, which travels beside the message when it is long. Called by the
// client on the task's thread.
#pragma once

#include "coordinator/wire/task.hpp"
#include "storage/run_layout.hpp"

namespace hedgerow::worker {

// `task` with the records of its inputs_file as inputs; unchanged if it names none. Waits up to 90
// s until a network file system shows the file. Throws kNotFound after that, kCorrupt if the file
// is not the one that the coordinator wrote.
[[nodiscard]] wire::Task with_inputs(const storage::RunLayout& layout, wire::Task task);

}  // namespace hedgerow::worker
