// The transfer stage of one block: its layers' feature maps learn from the teacher's attention
// outputs, each layer alone (worker/transfer/layer_trainer.hpp), on the sequences of the block's
// input boundary. No layer's gradient reaches another: the teacher's outputs go on to later layers.
#pragma once

#include "coordinator/wire/messages.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

// Trains until transfer.max_steps or until all layers have stopped, from task.resume if there is
// one, and writes the artifact blocks/bNNNN/artifact.tN.safetensors (the best copies) under
// attempts/t<token>/. Each validation is appended to attempts/t<token>/metrics.jsonl, one line a
// layer, and reported; after the last, attention maps of a few layers are too. Format of checkpoint
// and result: worker/README.md. Told to stop, it publishes a checkpoint and returns finished =
// false. Throws kCorrupt (input, or a checkpoint that does not fit this run), kInternal naming the
// layer whose loss is not finite.
TaskResult run_transfer(RunContext& run, TaskContext& context, const wire::Task& task);

}  // namespace hedgerow::worker
