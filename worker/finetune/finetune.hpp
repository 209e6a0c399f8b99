// The finetune stage as a task: what all ranks of the MPI job run. Rank 0 writes and talks; the
// others compute. A stop request that reaches rank 0 is shared before each step, so that all ranks
// leave together, checkpointed.
#pragma once

#include "coordinator/wire/messages.hpp"
#include "worker/comm/communicator.hpp"
#include "worker/run_context.hpp"
#include "worker/task_context.hpp"

namespace hedgerow::worker {

// task.inputs: the student's files; task.resume: a checkpoint, made at any world size. Collective;
// `context` is used on rank 0 alone. Writes attempts/t<token>/{checkpoint.sN.safetensors,
// metrics.jsonl, adapter_*}. result: {"steps", "loss", "tokens", "seconds", "tokens_per_second",
// "ranks"} and, if the tokens have a validation split, "validation_loss", "validation_perplexity".
// Throws kUsage (ranks or data that do not fit the recipe), kCorrupt, kUnavailable (a lost rank).
TaskResult run_finetune(RunContext& run,
                        TaskContext& context,
                        const wire::Task& task,
                        Communicator& communicator);

}  // namespace hedgerow::worker
