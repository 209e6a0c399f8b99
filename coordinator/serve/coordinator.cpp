#include "coordinator/serve/coordinator.hpp"

#include <algorithm>
#include <csignal>
#include <thread>

#include "coordinator/dispatch/actions.hpp"
#include "coordinator/dispatch/commit.hpp"
#include "coordinator/host/dead_holders.hpp"
#include "coordinator/serve/assembler.hpp"
#include "storage/base/fault_point.hpp"
#include "storage/base/utc.hpp"

namespace hedgerow::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using storage::Error;
using storage::ErrorKind;

constexpr milliseconds kTurnPatience{100};
constexpr int kMaxMessagesPerTurn = 1000;  // then replies go out, and time is looked at
constexpr seconds kDrainPatience{60};
constexpr seconds kStopPatience{30};
constexpr seconds kCourtesy{3};

}  // namespace

Coordinator::Coordinator(CoordinatorConfig config,
                         const Surroundings& surroundings,
                         Term term,
                         const std::optional<wire::CoordinatorFile>& previous,
                         RunObserver* observer)
    : config_(std::move(config)),
      surroundings_(surroundings),
      clock_(surroundings.clock),
      observer_(observer),
      folded_(std::move(term.folded)),
      desk_(config_.layout,
            std::move(folded_.state),
            std::move(term.journal),
            clock_,
            config_.dispatcher),
      workers_(config_.launcher, clock_),
      mpi_(config_.launcher) {
  for (const auto& [token, id] : desk_.state().grants) subjects_[token] = to_string(id);
  std::optional<RunStatus> published;
  if (observer_ != nullptr) published = published_status(config_.layout);
  if (published) measured_ = MeasuredMse(*published);
  for (const auto& [id, task] : desk_.state().tasks)
    workers_.note_incarnation(task.worker, task.incarnation);
  if (previous && previous->host == surroundings_.host) {
    workers_.adopt(previous->children);
    mpi_.adopt(previous->children);
  }
  adopt_stage_elsewhere();
  if (previous && previous->host == surroundings_.host)
    revoke_of_dead(previous->children, published);
  if (mpi_.running() || token_elsewhere_) {
    mode_ = Mode::kMpi;
    desk_.stop_workers("the finetune stage is running", Dispatcher::Spare::kFinetune);
  }
  file_ = {.host = surroundings_.host,
           .process = surroundings_.processes.self(),
           .term = desk_.term(),
           .endpoint = surroundings_.mailbox.endpoint(),
           .public_key = surroundings_.public_key,
           .started_at = clock_.utc(),
           .beat = 0,
           .children = {}};
  write_coordinator_file();
  next_beat_ = clock_.now() + wire::kBeatEvery;
}

Coordinator::~Coordinator() = default;

// Children that died while nobody looked hold leases that nobody will renew.
void Coordinator::revoke_of_dead(const std::vector<wire::ChildRecord>& children,
                                 const std::optional<RunStatus>& published) {
  std::vector<std::uint64_t> dead = held_by_dead(desk_.state(), children, surroundings_.processes);
  for (const auto& [token, id] : desk_.state().grants) {
    const bool lives = (mpi_.running() && mpi_.token() == token) || token_elsewhere_ == token;
    if (id.stage == Stage::kFinetune && !lives) dead.push_back(token);
  }
  for (const std::uint64_t token : dead) {
    const TaskRecord* task = desk_.state().holder(token);
    if (task == nullptr) continue;  // a finetune that is named twice
    const TaskStatus* last = published ? published->task(to_string(task->id)) : nullptr;
    const bool is_same = last != nullptr && last->token == token && last->progress;
    const auto lost = desk_.close_attempt(token, is_same ? &*last->progress : nullptr);
    desk_.record(LeaseRevoked{token, kDiedAlone, /*expired=*/false, lost});
  }
}

RunOutcome Coordinator::run() {
  try {
    publish(true);  // `stop` and `worker` find a coordinator by it
    while (!is_over()) turn(kTurnPatience);
    desk_.log_left_out(TimePoint::max());
    if (desk_.fatal() && !finished_) throw *desk_.fatal();
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
  mpi_.signal(SIGTERM);
}

// Whoever asks for the status after this coordinator's error is not to see its children at work.
// Nobody answers them any more, so they end when they have waited for that.
void Coordinator::await_children() {
  const TimePoint deadline = clock_.now() + kStopPatience;
  while (!(workers_.all_gone() && !mpi_.running()) && clock_.now() < deadline &&
         num_stop_requests() < 2) {
    std::this_thread::sleep_for(kTurnPatience);
    static_cast<void>(workers_.tend(/*wanted=*/false, ""));
    static_cast<void>(mpi_.poll());
  }
}

int Coordinator::num_stop_requests() const {
  return config_.stop_requests == nullptr ? 0 : config_.stop_requests->load();
}

void Coordinator::turn(milliseconds patience) {
  receive_all(patience);
  desk_.tick();
  tend_children();
  tend_mpi();
  send_all();
  if (desk_.fatal() && !stopping_) stop_children("there is no room for another file");
  if (changed_ && !stopping_) {
    changed_ = false;
    const auto intents =
        actions_for(desk_.state(), config_.dispatcher.keep, config_.retries_with_new_seed);
    for (const Intent& intent : intents) act(intent);
    send_all();
  }
  if (mode_ == Mode::kDraining && !stopping_) launch_when_drained();
  check_stop_requests();
  hear_the_door();
  check_still_ours();
  publish(false);
}

void Coordinator::hear_the_door() {
  if (!surroundings_.door) return;
  const DoorNews news = surroundings_.door();
  for (const std::string& note : news.notes) desk_.record(Noted{note});
  for (const std::string& warning : news.warnings) add_warning(folded_.warnings, warning);
  dirty_ = dirty_ || !news.warnings.empty();
}

void Coordinator::receive_all(milliseconds patience) {
  for (int received = 0; received < kMaxMessagesPerTurn; ++received) {
    const auto incoming = surroundings_.mailbox.receive(received == 0 ? patience : milliseconds(0));
    if (!incoming) return;
    desk_.receive(incoming->peer, incoming->frame, incoming->address);
    dirty_ = true;
  }
}

void Coordinator::send_all() {
  for (const Outgoing& outgoing : desk_.flush()) {
    // Whoever is gone asks again, or its lease runs out.
    surroundings_.mailbox.send(outgoing.peer, wire::encode(outgoing.message));
  }
  for (const RecordedEvent& recorded : desk_.take_recorded()) {
    changed_ = dirty_ = true;
    std::string subject;
    if (const auto* granted = std::get_if<Granted>(&recorded.event)) {
      subjects_[granted->token] = to_string(granted->task);
    }
    std::visit(
        [&](const auto& event) {
          if constexpr (requires { event.task; }) {
            subject = to_string(event.task);
          } else if constexpr (requires { event.token; }) {
            subject = subjects_[event.token];
          }
        },
        recorded.event);
    if (observer_ == nullptr) continue;
    folded_.times.observe(storage::wall_seconds(), desk_.state());
    observer_->on_event({desk_.term(),
                         recorded.seq,
                         clock_.utc(),
                         subject.empty() ? "run" : subject,
                         describe(recorded.event),
                         std::string(type_of(recorded.event))});
  }
}

bool Coordinator::workers_are_wanted() const {
  if (stopping_ || mode_ != Mode::kServing) return false;
  const StateIndex& index = desk_.state().index;
  int open = 0;
  for (const Stage stage : {Stage::kCapture, Stage::kTransfer, Stage::kEvaluate})
    open += index.count(stage, TaskState::kPending) + index.count(stage, TaskState::kGranted);
  // The last evaluation comes after finetune has had the machine for itself.
  const auto lora = desk_.state().tasks.find(TaskId::evaluate(Subject::kLora));
  const bool later = lora != desk_.state().tasks.end() &&
                     lora->second.state == TaskState::kPending &&
                     index.ready.count(lora->first) == 0;
  return open > (later ? 1 : 0);
}

void Coordinator::tend_children() {
  for (const std::string& uuid : desk_.take_hung_workers()) {
    desk_.log("workers that hang", "worker " + uuid + " hangs: killed");
    workers_.kill(uuid);
  }
  const std::vector<wire::ChildRecord> before = workers_.children();
  for (const wire::ChildRecord& child : before) {
    if (desk_.workers().contains(child.uuid)) workers_.note_hello(child.uuid);
  }
  for (const EndedWorker& ended :
       workers_.tend(workers_are_wanted(), surroundings_.mailbox.endpoint())) {
    dirty_ = true;
    if (ended.in_order) continue;
    desk_.worker_died(ended.uuid,
                      ended.incarnation,
                      stopping_ ? ErrorKind::kFenced : ErrorKind::kUnavailable,
                      "worker " + ended.uuid + " " + ended.how);
  }
  const std::vector<wire::ChildRecord> after = workers_.children();
  const auto same = [](const wire::ChildRecord& a, const wire::ChildRecord& b) {
    return a.process == b.process;
  };
  if (!std::equal(before.begin(), before.end(), after.begin(), after.end(), same))
    write_coordinator_file();
}

void Coordinator::tend_mpi() {
  if (tend_stage_elsewhere() || !mpi_.running()) return;
  const std::uint64_t token = mpi_.token();
  if (desk_.state().holder(token) == nullptr && !mpi_killed_) {
    // Done, or its lease is lost; either way its ranks have nothing more to do here.
    mpi_killed_ = clock_.now() + kStopPatience;
  }
  if (mpi_killed_ && clock_.now() >= *mpi_killed_) mpi_.signal(SIGKILL);
  const std::optional<ProcessExit> exit = mpi_.poll();
  if (!exit) return;
  dirty_ = changed_ = true;
  mpi_killed_.reset();
  mode_ = Mode::kServing;
  if (!stopping_) desk_.resume_granting();
  const bool interrupted =
      exit->known
          ? exit->signal == 0 && exit->code == static_cast<int>(storage::ExitCode::kInterrupted)
          : desk_.gave_back(token);
  if (desk_.state().holder(token) != nullptr) {
    desk_.fail_token(token,
                     interrupted || stopping_ ? ErrorKind::kFenced : ErrorKind::kUnavailable,
                     "the finetune stage " + exit->text() + "; its log ends:" + mpi_.log_tail());
  }
  write_coordinator_file();
}

void Coordinator::act(const Intent& intent) {
  switch (intent.kind) {
    case IntentKind::kAssemble:
      assemble();
      break;
    case IntentKind::kLaunchFinetune:
      if (mode_ != Mode::kServing) break;
      if (config_.stops_before_finetune) {
        leaves_finetune_ = true;
        finished_ = RunPhase::kRunning;
        begin_stop("the finetune stage is left to another command", /*is_over=*/false);
        break;
      }
      mode_ = Mode::kDraining;
      drain_deadline_ = clock_.now() + kDrainPatience;
      desk_.stop_workers("the finetune stage needs the machine", Dispatcher::Spare::kFinetune);
      publish(true);  // workers that come again see that they have to wait
      break;
    case IntentKind::kDropBoundary:
      drop_boundary(intent.boundary);
      break;
    case IntentKind::kRecapture:
      desk_.record(Recaptured{intent.task, intent.reason});
      break;
    case IntentKind::kReseed:
      desk_.record(Retried{intent.task, intent.reason, desk_.state().task(intent.task).seed + 1});
      break;
    case IntentKind::kQuarantine:
      desk_.record(Quarantined{intent.task, intent.reason});
      break;
    case IntentKind::kFinish:
      finished_ = intent.phase;
      begin_stop("the run has ended", /*is_over=*/true);
      break;
  }
}

void Coordinator::assemble() {
  const storage::FaultScope scope("coordinator.assemble");
  const std::uint64_t token =
      desk_.grant_unpulled(TaskId::assemble(), "coordinator", milliseconds(0));
  send_all();  // the grant is on disk before a file of its token is
  try {
    const auto files = surroundings_.assemble(desk_.state(), token);
    storage::fault_point("coordinator.student.written");
    for (const storage::FileRecord& file : files)
      commit_file(config_.layout, token, file, surroundings_.disk);
    storage::fault_point("coordinator.student.renamed");
    desk_.record(TaskDone{token, files, nlohmann::json::object(), TaskId::assemble()});
  } catch (const DamagedArtifact& damaged) {
    desk_.record(FileLost{damaged.name(), damaged.what()});
    desk_.record(TaskReleased{token, damaged.what()});
  } catch (const Error& error) {
    desk_.fail_token(token, error.kind(), error.what());
  }
}

void Coordinator::drop_boundary(int boundary) {
  desk_.record(BoundaryDropped{boundary});
  send_all();  // journal first: a crash in between leaves files that no reader is pointed to
  delete_dropped_shards(config_.layout, desk_.state(), boundary, surroundings_.disk);
}

void Coordinator::launch_when_drained() {
  if (!workers_.all_gone() && clock_.now() < drain_deadline_) return;
  workers_.signal_all(SIGKILL);  // nothing, if all are gone
  const std::string student =
      std::filesystem::path(desk_.state().task(TaskId::assemble()).files.front().name)
          .parent_path()
          .string();
  if (stage_starts_elsewhere()) {
    if (start_stage_elsewhere(student)) mode_ = Mode::kMpi;
    return;
  }
  const std::uint64_t token = desk_.grant_unpulled(TaskId::finetune(), kMpiHolder, kMpiStartTerm);
  send_all();
  mode_ = Mode::kMpi;
  mpi_.start(token, student, surroundings_.mailbox.endpoint());
  write_coordinator_file();
  storage::fault_point("coordinator.finetune.launched");
}

// Also workers that others started: those that hold a task get the full patience to give it back,
// idle ones a moment to hear that they should go.
bool Coordinator::everybody_left() const {
  if (!workers_.all_gone() || mpi_.running()) return false;
  const TimePoint now = clock_.now();
  if (now >= stop_deadline_) return true;
  const bool heard = now >= stop_deadline_ - kStopPatience + kCourtesy;
  return desk_.state().grants.empty() && (heard || desk_.workers().empty());
}

void Coordinator::begin_stop(const std::string& reason, bool is_over) {
  stopping_ = true;
  desk_.stop_workers(reason, Dispatcher::Spare::kNobody, is_over);
  send_all();
  stop_deadline_ = clock_.now() + kStopPatience;
}

void Coordinator::stop_children(const std::string& reason) {
  is_asked_to_stop_ = true;
  publish(true);  // a step of LoRA takes seconds: whoever asked sees at once that it was heard
  begin_stop(reason, /*is_over=*/false);
  workers_.signal_all(SIGTERM);
}

void Coordinator::check_stop_requests() {
  const int requests = num_stop_requests();
  if (requests > 0 && !stopping_) stop_children("the run was asked to stop");
  if (!stopping_) return;
  if (requests > 1 || clock_.now() >= stop_deadline_) {
    mpi_.signal(SIGKILL);
    workers_.signal_all(SIGKILL);
  } else if (clock_.now() >= stop_deadline_ - kStopPatience / 3) {
    mpi_.signal(SIGTERM);
  }
}

}  // namespace hedgerow::coordinator
