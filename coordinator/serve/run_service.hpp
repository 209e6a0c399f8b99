// A run from the command line's point of view: start or resume the directory, drive it to its end,
// say how it ended. The directory holds a resolved run.toml and tokens/ already (the CLI makes them
// before). Called by `hedgerow run`.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "coordinator/host/run_ownership.hpp"
#include "coordinator/plan/plan.hpp"
#include "coordinator/status/status.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {

struct RunOptions {
  std::filesystem::path run_directory;
  std::filesystem::path worker_binary;  // empty: hedgerow-worker beside the running executable
  std::optional<int>
      local_workers;  // instead of workers.local; 0: only workers that join from elsewhere
  // A program that starts workers elsewhere (srun) and ends with them: started whenever workers are
  // wanted, and waited for before the finetune stage. Empty: none.
  std::filesystem::path worker_launcher = {};
  bool stops_before_finetune =
      false;          // everything else is done here, that stage by another command
  std::string build;  // version and git hash, for the hello and the journal
  // Where the run's page listens: "HOST:PORT", "none"; empty: on loopback, at the port that it had
  // before, or any.
  std::string web = {};
  bool says_web_secret = false;  // in the address that is said: to a terminal, not to a log
  // Raised by signal handlers. 1: grant nothing more, children checkpoint and exit, then return
  // kInterrupted; 2: do not wait for them. Null: never.
  const std::atomic<int>* stop_requests = nullptr;
  // Grows with each SIGHUP: keys/allowed is read again. Null: never.
  const std::atomic<int>* reload_requests = nullptr;
  // What refuse_if_held() has found already, and who hears that it has to wait.
  Leftovers leftovers{};
  std::function<void(const std::string&)> say{};
  // How long a task that failed three times in a row on one worker waits for a second worker.
  std::chrono::milliseconds second_worker_timeout{std::chrono::minutes(10)};
};

// Called on the thread that called run().
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_status(
      const RunStatus& status) = 0;  // once a second when something changed, and at the end
  virtual void on_event(const ExplainedEvent& /*event*/) {
  }                                                    // each journaled event, after it is on disk
  virtual void on_log(const std::string& /*line*/) {}  // DispatcherConfig::log
};

struct RunOutcome {
  storage::ExitCode exit_code =
      storage::ExitCode::kOk;  // kOk, kPartial, kInterrupted; everything else is thrown
  std::string summary;  // one line: "done", "2 of 6 blocks are quarantined; 'hedgerow explain
                        // --block 3' says why", ...
  RunStatus status;
};

// Blocks until the run is done, partial or stopped. Throws kUsage (does not fit; another
// coordinator holds the run: names host, pid and term), kExhausted, kUnavailable (no worker binary;
// journal not writable), kCorrupt.
[[nodiscard]] RunOutcome run(const RunOptions& options, RunObserver& observer);

}  // namespace hedgerow::coordinator
