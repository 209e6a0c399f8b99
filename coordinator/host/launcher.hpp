// The worker processes that a coordinator starts on its own host, and what starting others shares.
// Tends them: starts what is missing, restarts what died, adopts what an earlier coordinator left.
// Never decides anything about tasks. Called by the coordinator's loop.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/host/clock.hpp"
#include "coordinator/host/process.hpp"
#include "coordinator/machine/ptrace.hpp"

namespace hedgerow::coordinator {

struct LauncherConfig {
  std::filesystem::path worker_binary;
  std::filesystem::path run_directory;
  std::filesystem::path logs;
  int local_workers = 0;
  // A program that starts workers elsewhere, as srun does, hands SIGUSR1 on to them (the request to
  // stop), and ends when they have ended; empty: none.
  std::filesystem::path worker_launcher{};
  int num_gpus = 0;  // that the local workers spread over; 0: they compute on the processors
  int threads = 1;   // of a worker process
  int ranks = 1;     // of the MPI stage
  int threads_per_rank = 1;
  int nodes = 1;  // that mpirun has
  // The mesh that so many ranks make, as "2x4"; throws kUsage where they make none. Empty: nothing
  // is planned, and the ranks decide.
  std::function<std::string(int ranks)> mesh_of_ranks{};
  Processes* processes = &host_processes();
  std::string host = wire::this_host();
};

struct EndedWorker {
  std::string uuid;
  std::uint64_t incarnation = 0;
  std::string how;        // "was killed by signal 9 (Killed)"
  bool in_order = false;  // exit code 0 or 4: it had released what it held
};

// Local workers are called <host>-<slot>, so that a restart is a new incarnation of the same
// worker. The worker launcher is tended like one of them, but is none: its workers say who they
// are.
[[nodiscard]] std::string local_worker_uuid(int slot, const std::string& host = wire::this_host());

// Workers are spread over GPUs by their slot (worker/device/device.hpp). Returns how many share the
// GPU of this one, itself among them; 1 without GPUs.
[[nodiscard]] int workers_on_device(int slot, int local_workers, int num_gpus);

class LocalWorkers {
 public:
  LocalWorkers(LauncherConfig config, const Clock& clock);

  void adopt(const std::vector<wire::ChildRecord>& children);
  // The next incarnation of this worker exceeds `incarnation`.
  void note_incarnation(const std::string& uuid, std::uint64_t incarnation);
  // It came up: its next restart need not wait, nor the launcher's if it is no local one.
  void note_hello(const std::string& uuid);

  // Reaps, and while `wanted` starts missing ones (after a backoff of 1 to 32 s if they keep
  // dying). Throws kUnavailable, with the end of its log, when a worker died five times without
  // ever saying hello.
  [[nodiscard]] std::vector<EndedWorker> tend(bool wanted, const std::string& endpoint);
  void signal_all(int number);
  void kill(const std::string& uuid);  // SIGKILL: it hangs
  [[nodiscard]] bool all_gone() const;
  [[nodiscard]] std::vector<wire::ChildRecord> children() const;

 private:
  struct Slot {
    std::string uuid;
    std::uint64_t incarnation = 0;
    std::optional<ChildProcess> process;
    int silent_deaths = 0;  // in a row, without a hello
    TimePoint start_after;
    bool is_launcher = false;
  };
  void note_end(Slot& slot, const ProcessExit& exit);
  void start(Slot& slot, const std::string& endpoint);
  [[nodiscard]] std::filesystem::path log_of(const Slot& slot) const;

  LauncherConfig config_;
  const Clock& clock_;
  std::vector<Slot> slots_;
};

// The words that start ranks of ours with mpirun; how many and which program come behind them.
// `in_allocation`: on the nodes of the job that this process is in, and not on this host alone.
// `copies`: ranks may copy out of each other's memory; else messages go through shared memory, with
// a copy more each.
[[nodiscard]] std::vector<std::string> mpirun_words(
    bool in_allocation, bool copies = machine::may_copy_between_processes());

// The last lines of a log file, for error messages.
[[nodiscard]] std::string tail_of(const std::filesystem::path& log, int lines = 5);

}  // namespace hedgerow::coordinator
