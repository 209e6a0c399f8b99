// The worker's end of the wire: a DEALER on a thread of its own, so that heartbeats go out while
// the task computes. Survives a vanished coordinator: the task goes on, the client looks for the
// next coordinator in coordinator.json with a backoff of 1 to 32 s, and keeps the lease if no other
// worker was granted it. After orphan_timeout without a coordinator the worker is told to stop.
// Every submission is repeated until it is answered, one at a time and in order; the coordinator
// answers a repeated one as it did the first.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/wire/messages.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::worker {

struct ClientOptions {
  storage::RunLayout layout;
  std::string endpoint;                            // "tcp://127.0.0.1:40123"
  wire::Hello hello;                               // who we are; held is the client's own business
  std::string key_pair = wire::kDefaultWorkerKey;  // in the run's keys/, if it has keys
  std::chrono::milliseconds orphan_timeout{std::chrono::minutes(10)};
  std::chrono::milliseconds heartbeat{std::chrono::seconds(5)};
  // How long a submission or a hello stays unanswered before it is repeated and the coordinator
  // looked for anew.
  std::chrono::milliseconds reply_timeout{std::chrono::seconds(10)};
  // Once told to stop: a coordinator that is silent for so long is not waited for any more.
  std::chrono::milliseconds stop_timeout{std::chrono::seconds(20)};
  // The MPI stage: the fencing token that it holds from the start; see join().
  std::uint64_t holds = 0;
  const std::atomic<bool>* stop_signal = nullptr;  // raised by a SIGTERM handler
};

class CoordinatorClient {
 public:
  explicit CoordinatorClient(
      ClientOptions options);  // starts the thread; does not wait for a connection
  ~CoordinatorClient();        // says goodbye, joins
  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  // The layout of the run that this worker works on, as in the options.
  [[nodiscard]] const storage::RunLayout& layout() const;

  // The next task as granted (task_inputs.hpp completes it); nullopt: stop. Blocks. `held_block`:
  // whose weights are loaded. Throws kUsage when the coordinator refuses this worker.
  [[nodiscard]] std::optional<wire::Task> next_task(int held_block);
  // The MPI stage: the task of the token that it holds, its inputs complete. nullopt: the token is
  // not current, or stop. Throws as next_task and with_inputs.
  [[nodiscard]] std::optional<wire::Task> join();

  // Any thread.
  void report(const wire::Progress& progress);
  [[nodiscard]] bool should_stop() const;  // SIGTERM, Stop, orphaned, or the current lease is lost
  [[nodiscard]] bool lease_lost() const;
  [[nodiscard]] std::string stop_reason() const;  // empty while the worker need not end
  // The coordinator said that there will be no more work in this run.
  [[nodiscard]] bool run_is_over() const;

  // Queues without waiting: training goes on while the coordinator is away or busy. A newer one
  // replaces an unanswered one. Should this process die before the commit, the coordinator finds
  // the file by its name.
  void checkpointed(const storage::FileRecord& file, std::int64_t step);
  [[nodiscard]] std::int64_t committed_step() const;  // of the current task; -1: none
  // Wait until committed. Throw kFenced (the lease is lost), kUnavailable (orphaned, or told to
  // stop while no coordinator answers).
  void shard_ready(const storage::FileRecord& file, int shard);
  void done(std::vector<storage::FileRecord> files, nlohmann::json result);
  void failed(storage::ErrorKind kind,
              const std::string& message,
              std::vector<std::string> damaged);
  void released(const std::string& reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::worker
