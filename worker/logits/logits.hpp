// The logits task: the teacher's top logits of a range of sequences, from which finetune learns
// without a teacher in memory. From the last boundary, whose block and the layers behind it are
// held as for a capture; or, where finetune has a text of its own, from tokens through all layers,
// one layer in memory at a time. Both give the same bytes.
#pragma once

#include "coordinator/wire/messages.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

// Writes logits/p<piece>.t<token>.h5, a shard (storage/shards/hidden_shard.hpp) whose chunks are
// those of top_logits.hpp. result: {"tokens", "seconds", "tokens_per_second",
// "seconds_waited_on_data"}. Throws kUsage, kCorrupt, kExhausted.
TaskResult run_logits(RunContext& run, TaskContext& context, const wire::Task& task);

}  // namespace hedgerow::worker
