// How a task talks to the process that runs it: worker/serve.cpp forwards to the coordinator, tests
// record in memory. A task never blocks on its caller for long and never touches a socket. All
// calls come from the task's own thread.
//
// A forward may take longer than a stop may take (30 s before a preempted node goes), so a task
// looks between sequences and layers too, by stop_if_told(): what it throws unwinds the forward,
// and the state after the last whole step is what counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/wire/messages.hpp"
#include "storage/files/file_record.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::worker {

class TaskContext {
 public:
  virtual ~TaskContext() = default;
  // Cheap; called every forward and at least every few seconds while computing.
  virtual void report(const wire::Progress& progress) = 0;
  // True once the process was told to stop (SIGTERM, lease lost, coordinator's Stop). The task then
  // checkpoints where it can and returns with finished = false. Cheap; asked between forwards,
  // layers and sequences.
  [[nodiscard]] virtual bool should_stop() const = 0;
  // A closed, synced file under attempts/t<token>/ (see attempt_path) that the coordinator may
  // rename to file.name. Throw kFenced if the lease is known to be lost.
  virtual void publish_shard(const storage::FileRecord& file, int shard) = 0;
  // A checkpoint is resumed from where it lies: file.name is its path under attempts/.
  // Does not wait: training goes on while the coordinator is away.
  virtual void publish_checkpoint(const storage::FileRecord& file, std::int64_t step) = 0;
  // The newest published step that a restart would resume from; checkpoints before it may be
  // removed. -1: none yet.
  [[nodiscard]] virtual std::int64_t committed_step() const {
    return std::numeric_limits<std::int64_t>::max();  // each is committed at once
  }
};

// What a task came to.
struct TaskResult {
  bool finished = false;  // false: told to stop; the work up to the last checkpoint or shard stands
  // Under attempts/, to be published: transfer: the artifact; evaluate: the result JSON; finetune:
  // the adapter's two.
  std::vector<storage::FileRecord> files = {};
  nlohmann::json result = nlohmann::json::object();  // shown by status and report
  bool step_abandoned = false;  // finetune: stopped inside a step; this rank waits for no other
};

// Thrown inside a forward by a task that was told to stop, and caught by the task itself: no error.
struct Stopped {};

inline void stop_if_told(const TaskContext& context) {
  if (context.should_stop()) throw Stopped{};
}

// Where the attempt `token` writes the file that will be published as `name`:
// attempts/t<token>/<base name>. Throws kUsage if a link there leads out of the run directory.
[[nodiscard]] inline std::filesystem::path attempt_path(const storage::RunLayout& layout,
                                                        storage::FencingToken token,
                                                        const std::string& name) {
  return layout.resolve(storage::RunLayout::attempt_directory(token) + "/" +
                        std::filesystem::path(name).filename().string());
}

}  // namespace hedgerow::worker
