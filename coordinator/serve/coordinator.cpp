#include "coordinator/serve/coordinator.hpp"

#include <algorithm>
#include <csignal>
#include <thread>

#include "coordinator/dispatch/actions.hpp"
#include "coordinator/dispatch/commit.hpp"
#include "coordinator/host/orphaned_leases.hpp"
#include "coordinator/serve/assembler.hpp"
#include "coordinator/state/task_graph.hpp"
#include "storage/base/utc.hpp"
#include "storage/faults/fault_point.hpp"

namespace hedgerow::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using storage::Error;
using storage::ErrorKind;

constexpr milliseconds kTurnTimeout{100};
constexpr int kMaxMessagesPerTurn = 1000;  // then replies go out, and time is looked at
constexpr seconds kDrainTimeout{60};
constexpr seconds kStopTimeout{30};
constexpr seconds kGracePeriod{3};
constexpr seconds kPublishEvery{1};
// Showing takes one part in so many of the coordinator's time; but what is shown is never so old
// that other hosts take the coordinator for dead.
constexpr int kPublishingShare = 100;
constexpr seconds kPublishAtLeastEvery{10};

}  // namespace

Coordinator::Coordinator(CoordinatorConfig config,
                         const Environment& environment,
                         Term term,
                         const std::optional<wire::CoordinatorFile>& previous,
                         RunObserver* observer)
    : config_(std::move(config)),
      environment_(environment),
      clock_(environment.clock),
      observer_(observer),
      folded_(std::move(term.folded)),
      dispatcher_(config_.layout,
                  std::move(folded_.state),
                  std::move(term.journal),
                  clock_,
                  config_.dispatcher),
      workers_(config_.launcher, clock_) {
  std::optional<RunStatus> published;
  if (observer_ != nullptr) published = published_status(config_.layout);
  for (const auto& [id, task] : dispatcher_.state().tasks)
    workers_.note_incarnation(task.worker, task.incarnation);
  if (observer_ != nullptr) {
    recorder_.emplace(config_.layout, dispatcher_.term());
    recorder_->note_start(dispatcher_.term(), environment_.host, storage::wall_seconds());
  }
  const bool was_here = previous && previous->host == environment_.host;
  const auto children = was_here ? previous->children : std::vector<wire::ChildRecord>{};
  workers_.adopt(children);
  stage_ = adopt_stage(
      config_.launcher, config_.layout, dispatcher_.state(), children, config_.finetune_elsewhere);
  if (was_here) revoke_of_dead(children, published);
  if (stage_)
    dispatcher_.stop_workers("the finetune stage is running", Dispatcher::Spare::kFinetune);
  file_ = {.host = environment_.host,
           .process = environment_.processes.self(),
           .term = dispatcher_.term(),
           .endpoint = environment_.mailbox.endpoint(),
           .public_key = environment_.public_key,
           .started_at = clock_.utc(),
           .heartbeat_count = 0,
           .children = {}};
  write_coordinator_file();
  next_heartbeat_ = clock_.now() + wire::kHeartbeatInterval;
}

Coordinator::~Coordinator() = default;

// Children that died while no coordinator ran hold leases that no process will renew.
void Coordinator::revoke_of_dead(const std::vector<wire::ChildRecord>& children,
                                 const std::optional<RunStatus>& published) {
  std::vector<std::uint64_t> dead =
      held_by_dead(dispatcher_.state(), children, environment_.processes);
  for (const auto& [token, id] : dispatcher_.state().grants) {
    const bool lives = stage_ && stage_->token() == token;
    if (id.stage == Stage::kFinetune && !lives) dead.push_back(token);
  }
  for (const std::uint64_t token : dead) {
    const TaskRecord* task = dispatcher_.state().holder(token);
    if (task == nullptr) continue;  // a finetune that is named twice
    const TaskStatus* last = published ? published->task(to_string(task->id)) : nullptr;
    const bool is_same = last != nullptr && last->token == token && last->progress;
    const auto lost = dispatcher_.close_attempt(token, is_same ? &*last->progress : nullptr);
    dispatcher_.record(LeaseRevoked{token, kDiedAlone, /*expired=*/false, lost});
  }
}

RunOutcome Coordinator::run() {
  try {
    publish(true);  // `stop` and `worker` find a coordinator by it
    while (!is_over()) turn(kTurnTimeout);
    dispatcher_.log_left_out(TimePoint::max());
    if (dispatcher_.fatal() && !finished_) throw *dispatcher_.fatal();
    return outcome(finished_.value_or(RunPhase::kRunning));
  } catch (const std::exception& error) {
    // Fenced: the children are the next coordinator's already.
    const auto* ours = dynamic_cast<const Error*>(&error);
    if (ours == nullptr || ours->kind() != ErrorKind::kFenced) {
      abandon_children();
      await_children();
    }
    throw;
  }
}

void Coordinator::abandon_children() {
  workers_.signal_all(SIGTERM);
  if (stage_) stage_->signal(SIGTERM);
}

bool Coordinator::has_children() const {
  return !workers_.all_gone() || (stage_ && stage_->child());
}

// After this coordinator's error the status must not show its children at work. No coordinator
// answers them any more, so they end after their wait for one.
void Coordinator::await_children() {
  const TimePoint deadline = clock_.now() + kStopTimeout;
  while (has_children() && clock_.now() < deadline && num_stop_requests() < 2) {
    std::this_thread::sleep_for(kTurnTimeout);
    static_cast<void>(workers_.tend(/*wanted=*/false, ""));
    if (stage_) static_cast<void>(stage_->poll(clock_.now(), {.is_held = true}));
  }
}

int Coordinator::num_stop_requests() const {
  return config_.stop_requests == nullptr ? 0 : config_.stop_requests->load();
}

void Coordinator::turn(milliseconds timeout) {
  receive_all(timeout);
  dispatcher_.tick();
  tend_children();
  tend_stage();
  send_all();
  if (dispatcher_.fatal() && !is_stopping()) stop_children("there is no room for another file");
  if (changed_ && !is_stopping()) {
    changed_ = false;
    const auto intents =
        actions_for(dispatcher_.state(), config_.dispatcher.keep, config_.retries_with_new_seed);
    for (const Intent& intent : intents) act(intent);
    send_all();
  }
  if (stage_ && !stage_->token() && !is_stopping()) start_stage_when_drained();
  check_stop_requests();
  reload_allowed_keys();
  check_still_ours();
  publish(false);
}

void Coordinator::reload_allowed_keys() {
  if (!environment_.allowed_keys_news) return;
  const AllowedKeysNews news = environment_.allowed_keys_news();
  for (const std::string& note : news.notes) dispatcher_.record(Noted{note});
  for (const std::string& warning : news.warnings) add_warning(folded_.warnings, warning);
  dirty_ = dirty_ || !news.warnings.empty();
}

void Coordinator::receive_all(milliseconds timeout) {
  for (int received = 0; received < kMaxMessagesPerTurn; ++received) {
    const auto incoming = environment_.mailbox.receive(received == 0 ? timeout : milliseconds(0));
    if (!incoming) return;
    dispatcher_.receive(incoming->peer, incoming->frame, incoming->address);
    dirty_ = true;
  }
}

void Coordinator::send_all() {
  for (const Outgoing& outgoing : dispatcher_.flush()) {
    // A peer that is gone asks again, or its lease runs out.
    environment_.mailbox.send(outgoing.peer, wire::encode(outgoing.message));
  }
  for (const RecordedEvent& recorded : dispatcher_.take_recorded()) {
    changed_ = dirty_ = true;
    if (observer_ == nullptr) continue;
    folded_.times.observe(storage::wall_seconds(), dispatcher_.state());
    recorder_->on_event(recorded, storage::wall_seconds());
    observer_->on_event({dispatcher_.term(),
                         recorded.seq,
                         clock_.utc(),
                         recorded.subject.empty() ? "run" : recorded.subject,
                         describe(recorded.event),
                         std::string(type_of(recorded.event))});
  }
}

bool Coordinator::workers_are_wanted() const {
  if (is_stopping() || stage_) return false;
  const StateIndex& index = dispatcher_.state().index;
  int open = 0;
  for (const wire::TaskKindRow& row : wire::task_kinds()) {
    if (row.is_pulled)
      open +=
          index.count(row.kind, TaskState::kPending) + index.count(row.kind, TaskState::kGranted);
  }
  // The last evaluation comes after finetune has had the machine for itself.
  int later = 0;
  for_each_late_task(*dispatcher_.state().geometry, [&](const TaskId& id) {
    if (id.subject != Subject::kLora) return;
    const bool is_pending = dispatcher_.state().task(id).state == TaskState::kPending;
    later += is_pending && !index.ready.contains(id) ? 1 : 0;
  });
  return open > later;
}

void Coordinator::tend_children() {
  for (const std::string& uuid : dispatcher_.take_hung_workers()) {
    dispatcher_.log("workers that hang", "worker " + uuid + " hangs: killed");
    workers_.kill(uuid);
  }
  const std::vector<wire::ChildRecord> before = workers_.children();
  for (const wire::ChildRecord& child : before) {
    if (dispatcher_.workers().contains(child.uuid)) workers_.note_hello(child.uuid);
  }
  for (const EndedWorker& ended :
       workers_.tend(workers_are_wanted(), environment_.mailbox.endpoint())) {
    dirty_ = true;
    if (ended.in_order) continue;
    dispatcher_.worker_died(ended.uuid,
                            ended.incarnation,
                            is_stopping() ? ErrorKind::kFenced : ErrorKind::kUnavailable,
                            "worker " + ended.uuid + " " + ended.how);
  }
  const std::vector<wire::ChildRecord> after = workers_.children();
  const auto same = [](const wire::ChildRecord& a, const wire::ChildRecord& b) {
    return a.process == b.process;
  };
  if (!std::equal(before.begin(), before.end(), after.begin(), after.end(), same))
    write_coordinator_file();
}

void Coordinator::tend_stage() {
  if (!stage_ || !stage_->token()) return;
  const std::uint64_t token = *stage_->token();
  const std::optional<StageEnd> end =
      stage_->poll(clock_.now(),
                   {.is_held = dispatcher_.state().holder(token) != nullptr,
                    .was_given_back = dispatcher_.gave_back(token)});
  if (!end) return;
  stage_.reset();
  dirty_ = changed_ = true;
  if (!is_stopping()) dispatcher_.resume_granting();
  if (dispatcher_.state().holder(token) != nullptr) {
    const bool is_fenced = end->is_interrupted || is_stopping();
    dispatcher_.fail_token(token, is_fenced ? ErrorKind::kFenced : end->kind, end->how);
  }
  write_coordinator_file();
}

void Coordinator::act(const Intent& intent) {
  switch (intent.kind) {
    case IntentKind::kAssemble:
      assemble();
      break;
    case IntentKind::kLaunchFinetune:
      if (stage_) break;
      if (config_.stops_before_finetune) {
        finished_ = RunPhase::kRunning;
        begin_stop(Phase::kLeavesFinetune, "the finetune stage is left to another command");
        break;
      }
      stage_ = config_.finetune_elsewhere ? make_external_stage(config_.launcher, config_.layout)
                                          : make_mpirun_stage(config_.launcher);
      drain_deadline_ = clock_.now() + kDrainTimeout;
      dispatcher_.stop_workers("the finetune stage needs the machine",
                               Dispatcher::Spare::kFinetune);
      publish(true);  // workers that come again see that they have to wait
      break;
    case IntentKind::kDropBoundary:
      drop_boundary(intent.boundary);
      break;
    case IntentKind::kDropLogits:
      dispatcher_.record(LogitsDropped{});
      send_all();
      delete_dropped_logits(config_.layout, dispatcher_.state(), environment_.disk);
      break;
    case IntentKind::kRecapture:
      dispatcher_.record(Recaptured{intent.task, intent.reason});
      break;
    case IntentKind::kReseed:
      dispatcher_.record(
          Retried{intent.task, intent.reason, dispatcher_.state().task(intent.task).seed + 1});
      break;
    case IntentKind::kQuarantine:
      dispatcher_.record(Quarantined{intent.task, intent.reason});
      break;
    case IntentKind::kFinish:
      finished_ = intent.phase;
      begin_stop(Phase::kEnds, "the run has ended");
      break;
  }
}

void Coordinator::assemble() {
  const storage::FaultScope scope("coordinator.assemble");
  const std::uint64_t token =
      dispatcher_.grant_unpulled(TaskId::assemble(), "coordinator", milliseconds(0));
  send_all();  // the grant is on disk before a file of its token is
  try {
    const auto files = environment_.assemble(dispatcher_.state(), token);
    storage::fault_point("coordinator.student.written");
    for (const storage::FileRecord& file : files)
      commit_file(config_.layout, token, file, environment_.disk);
    storage::fault_point("coordinator.student.renamed");
    dispatcher_.record(TaskDone{token, files, nlohmann::json::object(), TaskId::assemble()});
  } catch (const DamagedArtifact& damaged) {
    dispatcher_.record(FileLost{damaged.name(), damaged.what()});
    dispatcher_.record(TaskReleased{token, damaged.what()});
  } catch (const Error& error) {
    dispatcher_.fail_token(token, error.kind(), error.what());
  }
}

void Coordinator::drop_boundary(int boundary) {
  dispatcher_.record(BoundaryDropped{boundary});
  send_all();  // journal first: a crash in between leaves files that no reader is pointed to
  delete_dropped_shards(config_.layout, dispatcher_.state(), boundary, environment_.disk);
}

void Coordinator::start_stage_when_drained() {
  if (!workers_.all_gone() && clock_.now() < drain_deadline_) return;
  workers_.signal_all(SIGKILL);  // nothing, if all are gone
  const bool was_waiting = !stage_->wants().empty();
  if (!stage_->is_ready(clock_.now())) {
    if (!was_waiting && !stage_->wants().empty()) publish(true);  // a user or script must act
    return;
  }
  const std::string student =
      std::filesystem::path(dispatcher_.state().task(TaskId::assemble()).files.front().name)
          .parent_path()
          .string();
  const std::uint64_t token =
      dispatcher_.grant_unpulled(TaskId::finetune(), kMpiHolder, kMpiStartTerm);
  send_all();  // the grant is on disk before the ranks hear of it
  const std::string note = stage_->start(token, student, environment_.mailbox.endpoint());
  if (!note.empty()) dispatcher_.log("the finetune stage", note);
  write_coordinator_file();
  storage::fault_point("coordinator.finetune.launched");
  dirty_ = true;
}

// Also workers that others started: those that hold a task get the full timeout to give it back,
// idle ones a moment to hear that they should go.
bool Coordinator::everybody_left() const {
  if (has_children()) return false;
  const TimePoint now = clock_.now();
  if (now >= stop_deadline_) return true;
  const bool heard = now >= stop_deadline_ - kStopTimeout + kGracePeriod;
  return dispatcher_.state().grants.empty() && (heard || dispatcher_.workers().empty());
}

void Coordinator::begin_stop(Phase phase, const std::string& reason) {
  phase_ = phase;
  dispatcher_.stop_workers(reason, Dispatcher::Spare::kNobody, phase == Phase::kEnds);
  send_all();
  stop_deadline_ = clock_.now() + kStopTimeout;
}

void Coordinator::stop_children(const std::string& reason) {
  phase_ = Phase::kAskedToStop;
  publish(true);  // a step of LoRA takes seconds: the user sees at once that the stop was heard
  begin_stop(Phase::kAskedToStop, reason);
  workers_.signal_all(SIGTERM);
}

void Coordinator::check_stop_requests() {
  const int requests = num_stop_requests();
  if (requests > 0 && !is_stopping()) stop_children("the run was asked to stop");
  if (!is_stopping()) return;
  if (requests > 1 || clock_.now() >= stop_deadline_) {
    if (stage_) stage_->signal(SIGKILL);
    workers_.signal_all(SIGKILL);
  } else if (clock_.now() >= stop_deadline_ - kStopTimeout / 3) {
    if (stage_) stage_->signal(SIGTERM);
  }
}

void Coordinator::publish(bool always) {
  if (observer_ == nullptr) return;
  const TimePoint now = clock_.now();
  if (!always && (!dirty_ || now < next_publish_)) return;
  dirty_ = false;
  record_history();
  const RunStatus current = status();
  write_status(config_.layout, current);
  next_publish_ =
      now + std::clamp<TimePoint::duration>(
                kPublishingShare * (clock_.now() - now), kPublishEvery, kPublishAtLeastEvery);
  observer_->on_status(current);
}

void Coordinator::record_history() {
  if (!recorder_) return;
  const std::string problem = recorder_->update(dispatcher_, storage::wall_seconds());
  if (!problem.empty()) dispatcher_.log("history", "the run's history is not recorded: " + problem);
}

void Coordinator::write_coordinator_file() {
  file_.children = workers_.children();
  if (const auto child = stage_ ? stage_->child() : std::nullopt) file_.children.push_back(*child);
  wire::write_coordinator_file(config_.layout, file_, environment_.disk);
}

void Coordinator::check_still_ours() {
  if (clock_.now() < next_heartbeat_) return;
  next_heartbeat_ = clock_.now() + wire::kHeartbeatInterval;
  const std::optional<wire::CoordinatorFile> current =
      wire::read_coordinator_file(config_.layout, environment_.disk);
  if (current && current->term > file_.term) {
    throw storage::Overtaken("run " + config_.layout.root().string() +
                             ": another coordinator took this run over, and this one, term " +
                             std::to_string(file_.term) + ", leaves it alone");
  }
  ++file_.heartbeat_count;
  write_coordinator_file();
}

RunStatus Coordinator::status() {
  return live_status({.layout = config_.layout,
                      .file = file_,
                      .dispatcher = dispatcher_,
                      .folded = folded_,
                      .size = config_.size,
                      .stage = stage_.get(),
                      .web = config_.web,
                      .is_stopping = phase_ == Phase::kAskedToStop,
                      .has_room = !stage_ && !is_stopping(),
                      .now = clock_.now()});
}

RunOutcome Coordinator::outcome(RunPhase phase) {
  record_history();
  RunOutcome outcome =
      outcome_of(phase, dispatcher_.state(), status(), phase_ == Phase::kLeavesFinetune);
  write_status(config_.layout, outcome.status);
  if (observer_ != nullptr) observer_->on_status(outcome.status);
  return outcome;
}

}  // namespace hedgerow::coordinator
