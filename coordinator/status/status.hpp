// What people and programs are shown of a run: a value folded from the journal and, while a
// coordinator lives, from logs/status.json, which it replaces atomically once a second when
// something changed. A file and not a request on the socket, so that `status` and `watch` work from
// any node, after the run, and when the coordinator hangs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/dispatch/speed.hpp"
#include "coordinator/plan/recorded_plan.hpp"
#include "coordinator/wire/messages.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

struct TaskStatus {
  std::string
      id;  // "capture/b0003/p00", "transfer/b0003", "assemble", "finetune", "evaluate/teacher"
  Stage stage = Stage::kCapture;
  int block = -1, first_layer = 0, num_layers = 0;
  std::string state;   // "waiting", "ready", "running", "done", "dropped", "quarantined"
  std::string worker;  // uuid of the holder
  std::uint64_t token = 0;
  int attempts = 0, failures = 0;
  int wasted = 0;  // of the attempts: those that failed or lost their lease, not those given back
  std::int64_t lost_steps = 0;  // that those had reported since their last checkpoint
  // Steps in its newest committed checkpoint, from which the next attempt goes on, and in all. 0 in
  // all: it is not counted in steps.
  std::int64_t checkpoint_step = 0, num_steps = 0;
  std::string reason;                      // the last failure, or what it waits for
  std::optional<wire::Progress> progress;  // of the running attempt
  double seconds_since_progress = 0.0;     // "alive, no progress 90 s"
  nlohmann::json result;                   // coordinator/README.md "Results"

  struct Steps {
    std::int64_t done = 0, all = 0;
  };
  // Steps of the running attempt, or those in the checkpoint that is left of the last one.
  [[nodiscard]] Steps steps() const;
  // The peak of the running attempt or, done, of the one that finished it; zeros: not measured.
  [[nodiscard]] wire::PeakMemory peak_memory() const;
  // How often it had to be begun; going on after a stop that was asked for is the same try.
  [[nodiscard]] int tries() const;
};

struct WorkerStatus {
  std::string uuid, host, device, phase, task;
  std::uint64_t incarnation = 0;
  int pid = 0;
  double seconds_since_heartbeat = 0.0;
  std::optional<Speed> speed{};  // nullopt: it does nothing, or has not finished a step yet
};

struct StageStatus {
  Stage stage = Stage::kCapture;
  int total = 0, done = 0, running = 0, quarantined = 0;
  double seconds = 0.0;   // in which one of its tasks was granted, over all terms
  double fraction = 0.0;  // of its work, partial tasks counted by their steps
  double work = 0.0;      // floating-point operations that it was planned with; 0: unknown
  std::optional<double> eta_seconds;
  // What it has taken, beside what it was planned to take.
  double gpu_hours = 0.0;               // that attempts held GPUs; 0 on processors
  std::uint64_t memory_bytes = 0;       // the largest peak of its listed tasks; 0: not measured
  std::uint64_t disk_bytes = 0;         // the most of committed files while it ran
  std::optional<PlannedStage> planned;  // nullopt: the run has no plan.json
};

struct Spending {
  double gpu_hours = 0.0;
  std::optional<double> cost;  // of all nodes, in the currency of their prices; nullopt: no prices
};

struct RunStatus {
  std::string run;  // the directory
  // "new", "preparing" (tokens are made), "running", "stopped", "done", "partial"
  std::string state;
  bool is_stopping = false;  // asked to; what is granted still writes its checkpoints
  bool has_room = true;      // for workers: not while finetune has their place, or is to have it
  std::uint64_t term = 0;
  std::string host, endpoint;  // of the live coordinator
  std::string web;             // address of its page, without the secret; empty: it has none
  int pid = 0;
  std::string updated_at;  // UTC
  int num_layers = 0, num_blocks = 0;
  std::optional<double> fraction;     // of the whole run, its stages weighed by their work
  double elapsed_seconds = 0.0;       // in which any task was granted, over all terms
  std::optional<double> eta_seconds;  // to its end, while it runs and once something is measured
  // Until now, and from now to the end, once that is known; of a run without plan.json neither.
  std::optional<Spending> so_far, to_come;
  std::vector<StageStatus> stages;  // capture, transfer, assemble, finetune, evaluate
  std::vector<TaskStatus> tasks;
  std::vector<WorkerStatus> workers;
  int tasks_left_out = 0, workers_left_out = 0;  // of a run of thousands (status_build.hpp)
  std::vector<std::string> warnings;             // journal damage, changed builds, hung workers
  nlohmann::json task_scores = nlohmann::json::object();  // task_scores.hpp; empty: none

  [[nodiscard]] const TaskStatus* task(const std::string& id) const;
};

void to_json(nlohmann::json& json, const RunStatus& status);
void from_json(const nlohmann::json& json, RunStatus& status);

// The one refusal of a directory that is no run. Throws kUsage.
void require_run(const storage::RunLayout& layout);
// A run that has computed something and lost its journal; nullopt: it has not.
[[nodiscard]] std::optional<std::string> journal_problem(const storage::RunLayout& layout);

// Without a coordinator, in well under 50 ms. Throws kUsage if the directory is no run
// directory.
[[nodiscard]] RunStatus read_status(const storage::RunLayout& layout);

// What a worker finds that would like to join a run. Read without the journal, because workers look
// again and again.
struct Opening {
  enum class Kind {
    kNobody,   // no coordinator, and work is left, as far as is known
    kOver,     // done, or partial
    kBusy,     // the finetune stage has the workers' place or is to have it, or the run is stopping
    kWelcome,  // at `endpoint`
  };
  Kind kind = Kind::kNobody;
  std::string endpoint;
};
[[nodiscard]] Opening find_opening(const storage::RunLayout& layout);

struct ExplainedEvent {
  std::uint64_t term = 0, seq = 0;
  std::string at;       // UTC
  std::string subject;  // a task id, or "run"
  std::string text;     // "granted to local-1 under fencing token 41", "failed (corrupt): shard
                        // hidden/... ..."
  std::string type{};   // of the event: "granted", "failed", ...
};
// Every journaled event that concerns a block (and the shards of its boundaries), in order; block
// -1: all events.
[[nodiscard]] std::vector<ExplainedEvent> explain(const storage::RunLayout& layout, int block = -1);

// What is given up and why, tasks with the same reason together; empty: nothing is.
[[nodiscard]] std::string quarantine_text(const RunStatus& status);

}  // namespace hedgerow::coordinator
