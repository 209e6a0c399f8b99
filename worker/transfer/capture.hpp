// The capture stage: the teacher runs one block over a range of shards; what comes out is the next
// boundary.
#pragma once

#include "coordinator/wire/messages.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

// Writes shards task.first_shard .. of boundary task.block + 1 under attempts/t<token>/, each
// published as soon as it is closed. result: {"shards", "tokens", "seconds", "tokens_per_second",
// "seconds_waited_on_data"}. Throws kCorrupt (a damaged input shard, or a residual stream that is
// not finite, naming the sequence), kExhausted.
TaskResult run_capture(RunContext& run, TaskContext& context, const wire::Task& task);

}  // namespace hedgerow::worker
