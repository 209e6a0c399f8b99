// The shell around the pure core: one thread that receives, decides, commits and replies, tends its
// children, and does what actions_for() asks. The messages of a turn of its loop cost one fsync
// together.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "coordinator/dispatch/actions.hpp"
#include "coordinator/dispatch/dispatcher.hpp"
#include "coordinator/dispatch/term.hpp"
#include "coordinator/host/launcher.hpp"
#include "coordinator/serve/environment.hpp"
#include "coordinator/serve/finetune_stage.hpp"
#include "coordinator/serve/history_recorder.hpp"
#include "coordinator/serve/live_status.hpp"
#include "coordinator/serve/run_service.hpp"
#include "coordinator/state/fold.hpp"
#include "coordinator/wire/coordinator_file.hpp"

namespace hedgerow::coordinator {

struct CoordinatorConfig {
  storage::RunLayout layout;
  DispatcherConfig dispatcher;
  LauncherConfig launcher;
  int retries_with_new_seed = 0;
  JobSize size = {};  // for the status alone
  const std::atomic<int>* stop_requests = nullptr;
  bool stops_before_finetune = false;
  bool finetune_elsewhere = false;  // its ranks are not started by the coordinator
  std::string web = {};             // address of the run's page, for the status
};

class Coordinator {
 public:
  // `previous`: what the last coordinator left in coordinator.json; its children are adopted before
  // any is launched. `observer` may be null: then no status is made either.
  Coordinator(CoordinatorConfig config,
              const Environment& environment,
              Term term,
              const std::optional<wire::CoordinatorFile>& previous,
              RunObserver* observer);
  ~Coordinator();

  // Until the run is done, partial or stopped. Throws what cannot be gone on with; children are
  // told to stop then.
  [[nodiscard]] RunOutcome run();
  // What run() repeats until is_over(). Waits at most `timeout` for a message.
  void turn(std::chrono::milliseconds timeout);
  [[nodiscard]] bool is_over() const { return is_stopping() && everybody_left(); }
  // Tells the children to stop, after an error that ends this coordinator.
  void abandon_children();

  [[nodiscard]] Dispatcher& dispatcher() { return dispatcher_; }

 private:
  enum class Phase {
    kRuns,
    kEnds,            // done or partial
    kAskedToStop,     // by people, or a full disk
    kLeavesFinetune,  // everything else is done, and another command does that
  };

  void receive_all(std::chrono::milliseconds timeout);
  void send_all();  // commits first
  void tend_children();
  void tend_stage();
  void act(const Intent& intent);
  void assemble();
  void drop_boundary(int boundary);
  void start_stage_when_drained();
  void revoke_of_dead(const std::vector<wire::ChildRecord>& children,
                      const std::optional<RunStatus>& published);
  void check_stop_requests();
  void stop_children(const std::string& reason);
  void await_children();
  [[nodiscard]] int num_stop_requests() const;
  void reload_allowed_keys();
  [[nodiscard]] bool is_stopping() const { return phase_ != Phase::kRuns; }
  void begin_stop(Phase phase, const std::string& reason);
  void publish(bool always);
  void record_history();
  void write_coordinator_file();
  void check_still_ours();
  [[nodiscard]] bool workers_are_wanted() const;
  [[nodiscard]] bool has_children() const;
  [[nodiscard]] bool everybody_left() const;
  [[nodiscard]] RunStatus status();
  [[nodiscard]] RunOutcome outcome(RunPhase phase);

  CoordinatorConfig config_;
  Environment environment_;
  const Clock& clock_;
  RunObserver* observer_;
  std::optional<HistoryRecorder> recorder_;  // with an observer
  FoldedRun folded_;  // times and warnings; the state moves into dispatcher_
  Dispatcher dispatcher_;
  LocalWorkers workers_;
  // Null: workers are served. Without a token: it waits for them to leave, and for its ranks.
  std::unique_ptr<FinetuneStage> stage_;
  wire::CoordinatorFile file_;
  std::optional<RunPhase> finished_;
  Phase phase_ = Phase::kRuns;
  bool changed_ = true;  // events since actions_for() was asked last
  bool dirty_ = true;    // something to show
  TimePoint drain_deadline_, stop_deadline_, next_publish_, next_heartbeat_;
};

}  // namespace hedgerow::coordinator
