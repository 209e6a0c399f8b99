// The coordinator's dispatcher: turns workers' messages and the passing of time into events, and
// answers. No sockets and no processes, so that tests drive it message by message with a clock of
// their own. Events are applied to the state at once and buffered for the journal; flush() commits
// them with one fsync and only then gives the replies out, so no worker is told what a crash could
// undo.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/dispatch/dispatcher_config.hpp"
#include "coordinator/dispatch/leases.hpp"
#include "coordinator/dispatch/live_workers.hpp"
#include "coordinator/dispatch/unschedulable_tasks.hpp"
#include "coordinator/host/clock.hpp"
#include "coordinator/state/state.hpp"
#include "coordinator/wire/log_limit.hpp"
#include "coordinator/wire/messages.hpp"
#include "storage/journal/journal.hpp"

namespace hedgerow::coordinator {

struct Outgoing {
  std::string peer;  // as the socket names it
  wire::Message message;
};

struct RecordedEvent {
  std::uint64_t seq = 0;
  Event event;
  std::string subject;  // subject_of()
};

// One thread.
class Dispatcher {
 public:
  // Every lease that `state` holds gets a full term.
  Dispatcher(const storage::RunLayout& layout,
             State state,
             storage::Journal journal,
             const Clock& clock,
             DispatcherConfig config);

  // `address`: the peer's host, for the log; empty: unknown.
  void receive(const std::string& peer, std::string_view frame, const std::string& address = "");
  // Expired and hung leases, timeout for a second worker. After the socket is drained.
  void tick();
  // Commits the journal, then returns what may be sent. Throws kExhausted, kUnavailable: the
  // coordinator must stop.
  [[nodiscard]] std::vector<Outgoing> flush();
  // Committed by flush() since the last call.
  [[nodiscard]] std::vector<RecordedEvent> take_recorded();

  // Applies and journals an event of the shell's own. False: rejected, with the reason logged.
  bool record(const Event& event);
  // A line for DispatcherConfig::log, unless there were enough about this subject (LogLimit).
  void log(const std::string& subject, const std::string& line);
  // What log() kept back in minutes that are over by now, as counts.
  void log_left_out(TimePoint now);
  // Grants a task that no worker pulls (assemble, finetune), journaled with the next flush().
  std::uint64_t grant_unpulled(const TaskId& id,
                               const std::string& holder,
                               std::chrono::milliseconds first_term);
  // The launcher saw a local worker's process end: whatever it held has failed in this way.
  void worker_died(const std::string& uuid,
                   std::uint64_t incarnation,
                   storage::ErrorKind kind,
                   const std::string& how);
  void fail_token(std::uint64_t token, storage::ErrorKind kind, const std::string& message);
  // Commits the newest checkpoint of a current token if it was not yet, and ends the lease; the
  // event of the end is the caller's. What is lost, by what the holder reported last (may be null).
  std::optional<LostSteps> close_attempt(std::uint64_t token, const wire::Progress* last);
  // From now on requests are answered by Stop, and all connected workers are told. kFinetune spares
  // that task's holder; `is_over`: there will be no more work in this run.
  enum class Spare { kNobody, kFinetune };
  void stop_workers(const std::string& reason, Spare spare, bool is_over = false);
  void resume_granting() { stopping_.reset(); }

  [[nodiscard]] const State& state() const { return state_; }
  [[nodiscard]] const Leases& leases() const { return leases_; }
  [[nodiscard]] std::uint64_t term() const { return journal_.term(); }
  [[nodiscard]] const LiveWorkers& workers() const { return workers_; }
  // `holder`: a worker's uuid, or kMpiHolder.
  [[nodiscard]] std::vector<std::uint64_t> tokens_of(const std::string& holder) const;
  [[nodiscard]] const std::string& finetune_worker() const { return finetune_worker_; }
  // Whether the finetune stage of this token said that it was told to stop, and is checkpointed.
  [[nodiscard]] bool gave_back(std::uint64_t token) const { return gave_back_ == token; }
  // Local workers whose task hangs: the launcher kills and restarts them.
  [[nodiscard]] std::vector<std::string> take_hung_workers();
  [[nodiscard]] const UnschedulableTasks& fit() const { return fit_; }  // to be shown
  // Set when the run must stop, and then end with it: the disk is full.
  [[nodiscard]] const std::optional<storage::Error>& fatal() const { return fatal_; }

 private:
  struct Visitor;
  void reply(const std::string& peer, wire::Message message) {
    outgoing_.push_back({peer, std::move(message)});
  }
  LiveWorker* known(const std::string& peer, const wire::WorkerId& worker);
  // The task that `token` holds, if `worker` is its holder.
  const TaskRecord* held_by(std::uint64_t token, const wire::WorkerId& worker) const;
  const TaskRecord* finished_under(std::uint64_t token) const;
  [[nodiscard]] bool must_stop(const std::string& uuid) const;
  void reply_fenced(const std::string& peer, std::uint64_t token);
  void grant_to(const std::string& uuid, const LiveWorker& worker, const TaskId& id);
  wire::Task wire_task(const TaskId& id, std::uint64_t token) const;
  void note_once(const std::string& text);
  [[nodiscard]] wire::Idle book_next_request();
  void hello(const std::string& peer, const wire::Hello& message);
  void request(const std::string& peer, const wire::Request& message);
  void heartbeat(const std::string& peer, const wire::Heartbeat& message);
  void checkpointed(const std::string& peer, const wire::Checkpointed& message);
  void shard_ready(const std::string& peer, const wire::ShardReady& message);
  void done(const std::string& peer, const wire::Done& message);
  void failed(const std::string& peer, const wire::Failed& message);
  void released(const std::string& peer, const wire::Released& message);
  void goodbye(const wire::Goodbye& message);
  void join(const std::string& peer, const wire::Hello& hello);
  void forget(const std::string& uuid);
  void forget_silent_workers();
  void check_second_workers();
  void check_fit();

  storage::RunLayout layout_;
  State state_;
  storage::Journal journal_;
  const Clock& clock_;
  DispatcherConfig config_;
  Leases leases_;
  UnschedulableTasks fit_;
  LiveWorkers workers_;
  std::vector<WorkerView> connected_;  // the same ones, for the scheduler
  TimePoint next_housekeeping_{}, next_look_for_silent_{}, next_idle_request_{};
  std::map<TaskId, TimePoint> waiting_for_second_worker_;
  std::vector<Outgoing> outgoing_;
  std::vector<RecordedEvent> pending_, recorded_;
  std::vector<std::string> hung_;
  std::set<std::string> noted_;  // in this term
  wire::LogLimit log_limit_;
  std::optional<wire::Stop> stopping_;  // the answer to all that must go
  Spare spare_ = Spare::kNobody;
  std::uint64_t gave_back_ = 0;
  std::string finetune_worker_;  // uuid of the MPI stage's rank 0; empty before its hello
  std::optional<storage::Error> fatal_;
};

}  // namespace hedgerow::coordinator
