// The worker process: pulls tasks from a coordinator and runs them, one at a time, until it is told
// to stop.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "coordinator/wire/messages.hpp"
#include "storage/base/error.hpp"
#include "worker/client/coordinator_client.hpp"
#include "worker/task/memory_peak.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

struct ServeOptions {
  std::filesystem::path run_directory;
  std::string endpoint;
  std::string uuid;  // empty: one is drawn
  std::uint64_t incarnation = 1;
  std::string key_pair = wire::kDefaultWorkerKey;  // in the run's keys/, if it has keys
  int local_rank = local_rank_of_environment();    // picks among several GPUs
  int workers_on_device = 1;                       // that share its memory, this one among them
};

// kOk: the coordinator says that the run is over; kInterrupted: told to go, by it (the finetune
// stage needs the machine, the run was asked to stop) or by a signal, or orphaned: the work up to
// the last checkpoint stands, and there may be more. Throws kUsage (refused by the coordinator, no
// run directory).
[[nodiscard]] storage::ExitCode serve(const ServeOptions& options);

// This process as it introduces itself: what it computes on, and how much memory that has for each
// of the workers that share it: the scheduler grants each of them tasks of that size at once.
[[nodiscard]] wire::Hello make_hello(const std::string& uuid,
                                     std::uint64_t incarnation,
                                     const at::Device& device,
                                     int workers_on_device = 1);

// Raised by SIGTERM, SIGINT and SIGUSR1 from now on; installs the handlers. SIGUSR1 because mpirun
// hands it on to its ranks, whereas it answers SIGTERM by killing them a second later.
[[nodiscard]] const std::atomic<bool>& stop_signal();

// A task's context whose reports go to the coordinator, with the memory taken so far. Used by serve
// and by rank 0 of the finetune stage.
class RemoteContext final : public TaskContext {
 public:
  RemoteContext(CoordinatorClient& client, const MemoryPeakMeter& memory)
      : client_(client), memory_(memory) {}
  void report(const wire::Progress& progress) override {
    wire::Progress measured = progress;
    measured.peak_memory = memory_.peak();
    client_.report(measured);
  }
  [[nodiscard]] bool should_stop() const override { return client_.should_stop(); }
  void publish_shard(const storage::FileRecord& file, int shard) override {
    client_.shard_ready(file, shard);
  }
  void publish_checkpoint(const storage::FileRecord& file, std::int64_t step) override {
    client_.checkpointed(file, step);
  }
  [[nodiscard]] std::int64_t committed_step() const override { return client_.committed_step(); }

 private:
  CoordinatorClient& client_;
  const MemoryPeakMeter& memory_;
};

// kDeviceLost: given back, because every CUDA call of this process fails from now on.
enum class TaskEnd { kDone, kReleased, kFailed, kFenced, kDeviceLost };

// Runs `body` as the task on `device` and tells the coordinator how it ended, with the memory that
// it took. Never throws for a failed task.
TaskEnd execute(CoordinatorClient& client,
                const at::Device& device,
                const wire::Task& task,
                const std::function<TaskResult(TaskContext&)>& body);
// The same for what workers pull: capture, transfer, evaluate.
TaskEnd execute(RunContext& run, CoordinatorClient& client, const wire::Task& task);

}  // namespace hedgerow::worker
