// The finetune stage as a task: what all ranks of the MPI job run. Rank 0 writes and talks; the
// others compute. A stop request that reaches any rank is shared before each step, so that all
// ranks leave together, checkpointed. A step that lasts longer than a stop may wait is abandoned by
// rank 0, which holds all that is worth keeping: the state after the last whole step.
#pragma once

#include <chrono>

#include "coordinator/wire/messages.hpp"
#include "storage/shape/mesh.hpp"
#include "worker/comm/communicator.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

// How long the step that is under way may still take once a rank was told to stop; then rank 0
// abandons it, writes its checkpoint and leaves, upon which mpirun ends the others. Another rank
// that alone was told (its node goes) waits longer, because its leaving cuts rank 0's time short.
struct StopTimeout {
  std::chrono::milliseconds root{1000}, other{6000};
};

// task.inputs: the student's files; task.resume: a checkpoint, made at any world size. Collective.
// Writes checkpoints (storage/tensors/checkpoint.hpp), metrics.jsonl and adapter_* into
// attempts/t<token>/. result: {"steps", "loss", "tokens", "seconds", "tokens_per_second", "ranks",
// "mesh"} and what ValidationRules::result() gives. Where finetune.objective needs the teacher's
// logits, their files are among the inputs. `context` of the other ranks is only asked whether to
// stop. If this rank abandoned a step (of a mesh with several stages none does before it had 20
// times as long, and no checkpoint is written then), the communicator is abandoned too, and
// result.step_abandoned is true: the process leaves without MPI_Finalize. Throws kUsage (ranks or
// data that do not fit the recipe), kCorrupt, kUnavailable (a lost rank).
TaskResult run_finetune(RunContext& run,
                        TaskContext& context,
                        const wire::Task& task,
                        const storage::Mesh& mesh,
                        Communicator& communicator,
                        const StopTimeout& timeout = {});

}  // namespace hedgerow::worker
