// Checkpoints of the finetune stage, written in the background of the step that follows. With one
// stage rank 0 writes all of it. With several each stage of the first pipeline writes a part, its
// layers' parameters and moments by name, and rank 0 the checkpoint itself: the task's state and
// the parts' names and hashes. It is whole before the step that follows counts as done, so that a
// kill costs one interval at most. Called on the computing thread of every rank.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "storage/shape/mesh.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "worker/comm/communicator.hpp"
#include "worker/task/attempt_files.hpp"

namespace hedgerow::worker {

class StageCheckpoint {
 public:
  // All outlive it.
  StageCheckpoint(const storage::RunLayout& layout,
                  storage::FencingToken token,
                  const storage::Mesh& mesh,
                  Communicator& communicator,
                  AttemptFiles& files);
  ~StageCheckpoint();

  // Whether this rank writes anything: rank 0, or the stages of the first pipeline.
  [[nodiscard]] bool writes() const { return is_writer_; }
  // Begins one: this rank's parameters, and the task's state. settle() comes between two of them.
  void begin(std::int64_t step, storage::Checkpoint checkpoint);
  // The newest that was begun; -1: none.
  [[nodiscard]] std::int64_t step() const { return step_; }
  // Waits until the one that was begun is whole, and publishes it; nothing where none was. With
  // several stages it is collective over those that write.
  void settle();
  // All stages' tensors of a checkpoint of this step, on rank 0; nothing elsewhere. As settle().
  [[nodiscard]] storage::Checkpoint gather(std::int64_t step, storage::Checkpoint checkpoint);

 private:
  [[nodiscard]] bool has_parts() const { return mesh_.pipeline > 1; }
  // Each stage's part, in order, on all that write.
  [[nodiscard]] std::vector<storage::FileRecord> parts();

  const storage::RunLayout& layout_;
  storage::FencingToken token_;
  const storage::Mesh& mesh_;
  AttemptFiles& files_;
  bool is_writer_;
  std::unique_ptr<Communicator> stages_;  // the first pipeline's ranks, where it has several
  std::int64_t step_ = -1;
  nlohmann::json state_;
  std::future<storage::FileRecord> file_;  // of this rank, until it is settled
};

// Adds the tensors of the parts that a checkpoint names. Throws kCorrupt, kNotFound, and what JSON
// throws.
void read_parts(const storage::RunLayout& layout, storage::Checkpoint& checkpoint);

}  // namespace hedgerow::worker
