// The sequences entering a block, streamed by capture index (storage/recipe/capture_plan.hpp) in
// any announced order: from the shards of its boundary, or for block 0 from the tokens through the
// embedding, which is never stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "coordinator/wire/messages.hpp"
#include "storage/recipe/capture_plan.hpp"
#include "storage/shards/boundary_reader.hpp"
#include "worker/device/upload.hpp"
#include "worker/task/run_context.hpp"

namespace hedgerow::worker {

class BlockInput {
 public:
  // Reads the committed shards task.inputs; `run` must outlive this. `engine` copies ahead to a
  // device. Throws kNotFound, kCorrupt naming the shard.
  BlockInput(RunContext& run, const wire::Task& task)
      : BlockInput(run, task, make_copy_engine(run.device())) {}
  BlockInput(RunContext& run, const wire::Task& task, std::unique_ptr<CopyEngine> engine);

  // Announces the order and starts prefetching; replaces an earlier announcement.
  void plan(std::vector<std::int64_t> capture_indices);
  // The next `count` announced sequences, [count, T, M], rounded to the stream dtype, in the
  // compute dtype.
  at::Tensor next(std::int64_t count);
  [[nodiscard]] double seconds_waited() const;

 private:
  at::Tensor embedded(std::int64_t capture_index);
  at::Tensor stored();

  RunContext& run_;
  storage::CapturePlan capture_plan_;
  // None for block 0; in this order, because each uses the one before.
  std::unique_ptr<CopyEngine> engine_;  // null: copied when it is needed
  std::optional<storage::BoundaryReader> reader_;
  std::optional<Uploader> uploader_;
  std::vector<std::int64_t> order_;  // block 0 only
  std::size_t position_ = 0;
};

}  // namespace hedgerow::worker
