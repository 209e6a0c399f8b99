// What a training task (transfer, finetune) keeps under attempts/t<token>/ while it runs: its
// checkpoints and metrics.jsonl; and the checkpoint that it goes on from. Called from the task's
// own thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "storage/tensors/checkpoint.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

class AttemptFiles {
 public:
  // All three outlive it.
  AttemptFiles(const storage::RunLayout& layout, TaskContext& context, const wire::Task& task)
      : layout_(layout), context_(context), task_(task) {}

  void append_metrics(const std::string& lines);

  // Whether the newest checkpoint of this attempt is of this step: a stop right after a periodic
  // one need not write it again, and the coordinator may be reading it.
  [[nodiscard]] bool has_checkpoint(std::int64_t step) const {
    return !checkpoints_.empty() && checkpoints_.back().step == step;
  }
  // Writes and publishes it. `written`: the fault point between the two.
  void write_checkpoint(const storage::Checkpoint& checkpoint,
                        std::int64_t step,
                        const std::function<void()>& written);
  // One that is written, with the files that it names. The newest that the journal names stays, and
  // those after it, which it may not name yet; older ones are removed.
  void publish_checkpoint(const storage::FileRecord& record,
                          std::int64_t step,
                          const std::vector<std::string>& parts = {});

 private:
  const storage::RunLayout& layout_;
  TaskContext& context_;
  const wire::Task& task_;
  struct Written {
    std::int64_t step;
    std::vector<std::filesystem::path> files;  // the checkpoint first
  };
  std::vector<Written> checkpoints_;
};

// What a checkpoint's state must say.
struct CheckpointMatch {
  const char* key;
  nlohmann::json expected;
  std::string otherwise;  // "was trained on other tokens"; with a space at its end, what it says
};

// Reads the task's checkpoint, checks it, and hands it to `restore`. Throws kCorrupt naming it, the
// first match that fails (or what is missing in it), and what starts again without it ("the
// block"). `restore` may throw it too, by `refuse`.
using RefuseCheckpoint = std::function<void(const std::string& what)>;
void resume_from_checkpoint(
    const storage::RunLayout& layout,
    const wire::Task& task,
    const std::string& what_starts_again,
    const std::vector<CheckpointMatch>& matches,
    const std::function<void(const storage::Checkpoint&, const RefuseCheckpoint&)>& restore);

}  // namespace hedgerow::worker
