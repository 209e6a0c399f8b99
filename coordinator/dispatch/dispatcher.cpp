#include "coordinator/dispatch/dispatcher.hpp"

#include <algorithm>
#include <filesystem>
#include <span>

#include "coordinator/dispatch/actions.hpp"
#include "coordinator/dispatch/commit.hpp"
#include "coordinator/state/fold.hpp"
#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"
#include "storage/files/hash.hpp"
#include "storage/json/json_fields.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;

// A worker beats every few seconds, with a task or without; one that is silent this long is
// gone at the next look.
constexpr std::chrono::seconds kForgetWorkerAfter{60};
// What walks over all workers is not done at every turn of the loop.
constexpr std::chrono::seconds kHousekeeping{1};
constexpr std::chrono::seconds kLookForSilentEvery{10};
// Characters of one line of the log, which may quote what a peer sent.
constexpr std::size_t kLongestLine = 500;

// Four in a lease, so that one that is late costs nothing; of long leases no fewer than this.
constexpr int kHeartbeatSeconds = 5;
constexpr int kHeartbeatsInALease = 4;
// Between the requests of idle workers, all of them together: more would keep the coordinator from
// those that work.
constexpr std::chrono::milliseconds kBetweenIdleRequests{2};
// A note of the journal, which may quote what a peer says that it is.
constexpr std::size_t kLongestNote = 300;
// More inputs than this would not fit a message; they go through a file of the attempt.
constexpr std::size_t kMaxInlineInputs = 200;

// False also for a name that leads nowhere any more, as a link whose end was deleted.
bool is_there(const storage::Disk& disk,
              const storage::RunLayout& layout,
              const std::string& name) {
  try {
    return disk.exists(layout.resolve(name));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

// Routes each message to its handler; what only coordinators send is refused by name.
struct Dispatcher::Visitor {
  Dispatcher& dispatcher;
  const std::string& peer;

  void operator()(const wire::Hello& m) const { dispatcher.hello(peer, m); }
  void operator()(const wire::Request& m) const { dispatcher.request(peer, m); }
  void operator()(const wire::Heartbeat& m) const { dispatcher.heartbeat(peer, m); }
  void operator()(const wire::Checkpointed& m) const { dispatcher.checkpointed(peer, m); }
  void operator()(const wire::ShardReady& m) const { dispatcher.shard_ready(peer, m); }
  void operator()(const wire::Done& m) const { dispatcher.done(peer, m); }
  void operator()(const wire::Failed& m) const { dispatcher.failed(peer, m); }
  void operator()(const wire::Released& m) const { dispatcher.released(peer, m); }
  void operator()(const wire::Goodbye& m) const { dispatcher.goodbye(m); }
  template <typename T>
  void operator()(const T& m) const {
    dispatcher.reply(peer,
                     wire::Refused{std::string(wire::type_of(m)) + " is a coordinator's message"});
  }
};

Dispatcher::Dispatcher(const storage::RunLayout& layout,
                       State state,
                       storage::Journal journal,
                       const Clock& clock,
                       DispatcherConfig config)
    : layout_(layout),
      state_(std::move(state)),
      journal_(std::move(journal)),
      clock_(clock),
      config_(std::move(config)),
      leases_(clock, config_.leases),
      fit_(config_.needs, config_.own_workers, config_.needs_external_workers) {
  for (const auto& [token, id] : state_.grants) {
    leases_.grant(token, id.stage == Stage::kFinetune ? kMpiStartTerm : std::chrono::seconds{});
  }
}

void Dispatcher::receive(const std::string& peer,
                         std::string_view frame,
                         const std::string& address) {
  const auto drop = [&](const std::string& what) {
    // Not by connection: a peer has as many of those as it likes.
    const std::string origin = "messages from " + (address.empty() ? "unknown hosts" : address);
    log(origin, origin + ": dropped " + what);
  };
  const std::optional<std::uint32_t> protocol = wire::protocol_of(frame);
  if (!protocol) {
    drop(std::to_string(frame.size()) + " bytes that are no hedgerow message");
    return;
  }
  if (*protocol != wire::kProtocol) {
    reply(peer,
          wire::Refused{"this worker speaks protocol " + std::to_string(*protocol) +
                        ", the coordinator (" + config_.version + ") speaks " +
                        std::to_string(wire::kProtocol) +
                        "; install the same version of hedgerow on both"});
    return;
  }
  try {
    std::visit(Visitor{*this, peer}, wire::decode(frame));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    drop(std::string("a damaged one: ") + error.what());
  }
}

void Dispatcher::log(const std::string& subject, const std::string& line) {
  if (config_.log && log_limit_.admits(subject, clock_.now()))
    config_.log(line.substr(0, kLongestLine));
}

void Dispatcher::log_left_out(TimePoint now) {
  for (const std::string& line : log_limit_.left_out(now)) {
    if (config_.log) config_.log(line);
  }
}

bool Dispatcher::record(const Event& event) {
  std::string subject = subject_of(event, state_);  // before the event ends its task's lease
  if (const std::optional<Rejection> rejection = apply(state_, event)) {
    log("events that were rejected",
        "event " + std::string(type_of(event)) + " rejected: " + rejection->reason);
    return false;
  }
  pending_.push_back(
      {journal_.append(event_to_json(event), clock_.utc()), event, std::move(subject)});
  return true;
}

std::vector<Outgoing> Dispatcher::flush() {
  if (!pending_.empty()) {
    journal_.commit();
    storage::fault_point("coordinator.journal.committed");
    recorded_.insert(recorded_.end(), pending_.begin(), pending_.end());
    pending_.clear();
    if (journal_.wants_snapshot()) {
      journal_.write_snapshot([&](const storage::TextSink& sink) { write_state(state_, sink); });
    }
  }
  return std::exchange(outgoing_, {});
}

std::vector<RecordedEvent> Dispatcher::take_recorded() { return std::exchange(recorded_, {}); }

std::vector<std::string> Dispatcher::take_hung_workers() { return std::exchange(hung_, {}); }

std::uint64_t Dispatcher::grant_unpulled(const TaskId& id,
                                         const std::string& holder,
                                         std::chrono::milliseconds first_term) {
  const std::uint64_t token = std::max(state_.last_token, config_.token_floor) + 1;
  if (!record(Granted{id, token, holder, 0, ""})) {
    throw Error(ErrorKind::kInternal, "could not grant " + to_string(id) + " to " + holder);
  }
  leases_.grant(token, first_term);
  return token;
}

// A worker may die, or lose its coordinator, between a checkpoint and the word that it is there.
// What is committed here is still of the current fencing token.
std::optional<LostSteps> Dispatcher::close_attempt(std::uint64_t token,
                                                   const wire::Progress* last) {
  const TaskRecord& task = *state_.holder(token);
  const bool has_checkpoints = wire::has_checkpoints(task.id.stage);
  try {
    const auto found =
        has_checkpoints ? newest_checkpoint(layout_, token, *config_.disk) : std::nullopt;
    if (found && found->step > first_step(task))
      record(CheckpointCommitted{token, found->step, found->file, task.id});
  } catch (const Error& error) {
    log("attempts that cannot be searched",
        to_string(task.id) +
            ": its attempt cannot be searched for a newer checkpoint: " + error.what());
  }
  const std::optional<LostSteps> lost = lost_steps(task, last);
  leases_.end(token);
  return lost;
}

void Dispatcher::fail_token(std::uint64_t token, ErrorKind kind, const std::string& message) {
  if (state_.holder(token) == nullptr) return;
  const std::optional<LostSteps> lost = close_attempt(token, leases_.progress(token));
  if (reaction_to(kind) == Reaction::kForget) {
    record(TaskReleased{token, message, lost});
    return;
  }
  const std::string what =
      storage::without_room_advice(message);  // given once, and not by each task
  record(TaskFailed{token, kind, what, lost});
  if (reaction_to(kind) != Reaction::kCheckRoom) return;
  const std::uint64_t free = config_.disk->free_bytes(layout_.root());
  if (free >= config_.room_for_retry) return;
  fatal_.emplace(ErrorKind::kExhausted,
                 what + "; " + std::to_string(free >> 20) + " MiB are free in " +
                     layout_.root().string() + ", and the run goes on with at least " +
                     std::to_string(config_.room_for_retry >> 20) + " MiB; nothing is lost" +
                     std::string(storage::kRoomAdvice));
}

void Dispatcher::worker_died(const std::string& uuid,
                             std::uint64_t incarnation,
                             ErrorKind kind,
                             const std::string& how) {
  for (const std::uint64_t token : tokens_of(uuid)) {
    if (state_.holder(token)->incarnation == incarnation) fail_token(token, kind, how);
  }
  const auto found = workers_.find(uuid);
  if (found != workers_.end() && found->second.incarnation == incarnation) forget(uuid);
}

std::vector<std::uint64_t> Dispatcher::tokens_of(const std::string& uuid) const {
  const auto held = state_.index.tokens_of.find(uuid);
  if (held == state_.index.tokens_of.end()) return {};
  return {held->second.begin(), held->second.end()};
}

void Dispatcher::join(const std::string& peer, const wire::Hello& hello) {
  const auto [entry, is_new] = workers_.try_emplace(hello.worker.uuid);
  LiveWorker& worker = entry->second;
  if (is_new) {
    worker.view = connected_.size();
    connected_.emplace_back();
  }
  worker.peer = peer;
  worker.incarnation = hello.worker.incarnation;
  worker.host = hello.host;
  worker.device = hello.device;
  worker.pid = hello.pid;
  worker.last_seen = clock_.now();
  connected_[worker.view] = {hello.worker.uuid, hello.memory_bytes, hello.held_block};
}

void Dispatcher::forget(const std::string& uuid) {
  const auto worker = workers_.find(uuid);
  const std::size_t view = worker->second.view;
  workers_.erase(worker);
  if (view + 1 < connected_.size()) {
    connected_[view] = std::move(connected_.back());
    workers_.at(connected_[view].uuid).view = view;
  }
  connected_.pop_back();
}

void Dispatcher::stop_workers(const std::string& reason, Spare spare, bool is_over) {
  stopping_ = {reason, is_over};
  spare_ = spare;
  for (const WorkerView& view : connected_) {
    if (must_stop(view.uuid)) reply(workers_.at(view.uuid).peer, *stopping_);
  }
}

bool Dispatcher::must_stop(const std::string& uuid) const {
  return stopping_ && !(spare_ == Spare::kFinetune && uuid == finetune_worker_);
}

void Dispatcher::tick() {
  for (const Leases::Ended& ended : leases_.due()) {
    const TaskRecord* task = state_.holder(ended.token);
    if (task == nullptr) {
      leases_.end(ended.token);
    } else if (ended.hung) {
      hung_.push_back(task->worker);
      fail_token(ended.token, ErrorKind::kUnavailable, "hung: " + ended.reason);
    } else {
      const std::optional<LostSteps> lost =
          close_attempt(ended.token, leases_.progress(ended.token));
      record(LeaseRevoked{ended.token, ended.reason, /*expired=*/true, lost});
    }
  }
  if (clock_.now() < next_housekeeping_) return;
  next_housekeeping_ = clock_.now() + kHousekeeping;
  log_left_out(clock_.now());
  forget_silent_workers();
  check_second_workers();
  check_fit();
}

void Dispatcher::forget_silent_workers() {
  const TimePoint now = clock_.now();
  if (now < next_look_for_silent_) return;
  next_look_for_silent_ = now + kLookForSilentEvery;
  std::vector<std::string> silent;
  for (const WorkerView& view : connected_) {
    if (now - workers_.at(view.uuid).last_seen > kForgetWorkerAfter && tokens_of(view.uuid).empty())
      silent.push_back(view.uuid);
  }
  for (const std::string& uuid : silent) forget(uuid);
}

void Dispatcher::check_fit() {
  if (stopping_) return;  // workers leave, and those that stay longest need not be the largest
  for (const TaskId& id : fit_.look(state_, connected_, clock_.now()))
    record(Quarantined{id, fit_.shown().at(id)});
}

void Dispatcher::check_second_workers() {
  const TimePoint now = clock_.now();
  std::map<TaskId, TimePoint> waiting;
  std::vector<TaskId> given_up;
  for (const TaskId& id : state_.index.troubled) {
    if (!wants_second_worker(state_.task(id))) continue;
    const auto before = waiting_for_second_worker_.find(id);
    const TimePoint since = before == waiting_for_second_worker_.end() ? now : before->second;
    waiting[id] = since;
    if (now - since >= config_.second_worker_timeout) given_up.push_back(id);
  }
  waiting_for_second_worker_ = std::move(waiting);
  for (const TaskId& id : given_up) {
    record(
        Quarantined{id, quarantine_reason(state_.task(id)) + "; no second worker came to try it"});
  }
}

// What each message of a worker does. The table is in coordinator/README.md "Wire".

LiveWorker* Dispatcher::known(const std::string& peer, const wire::WorkerId& worker) {
  const auto found = workers_.find(worker.uuid);
  if (found == workers_.end() || found->second.incarnation != worker.incarnation) {
    reply(peer, wire::WhoAreYou{term()});
    return nullptr;
  }
  found->second.peer = peer;  // a reconnect gives the same worker another name
  found->second.last_seen = clock_.now();
  return &found->second;
}

const TaskRecord* Dispatcher::held_by(std::uint64_t token, const wire::WorkerId& worker) const {
  const TaskRecord* task = state_.holder(token);
  if (task == nullptr) return nullptr;
  // The MPI stage holds its task by token; its rank 0 has a uuid of its own.
  if (task->id.stage == Stage::kFinetune) return task;
  return task->worker == worker.uuid && task->incarnation == worker.incarnation ? task : nullptr;
}

const TaskRecord* Dispatcher::finished_under(std::uint64_t token) const {
  for (const auto& [id, task] : state_.tasks) {
    if (task.token == token && task.state == TaskState::kDone) return &task;
  }
  return nullptr;
}

void Dispatcher::reply_fenced(const std::string& peer, std::uint64_t token) {
  reply(peer, wire::Fenced{token, "fencing token " + std::to_string(token) + " is not current"});
}

// Workers that restart again and again, and peers that make up names, must not fill the journal.
void Dispatcher::note_once(const std::string& text) {
  const std::string note = text.substr(0, kLongestNote);
  if (noted_.contains(note) || !log_limit_.admits("workers of other builds", clock_.now())) return;
  noted_.insert(note);
  record(Noted{note});
}

void Dispatcher::hello(const std::string& peer, const wire::Hello& message) {
  const std::string& uuid = message.worker.uuid;
  const auto found = workers_.find(uuid);
  if (found != workers_.end() && found->second.incarnation > message.worker.incarnation) {
    reply(peer, wire::Refused{"a later incarnation of worker " + uuid + " is connected"});
    return;
  }
  if (message.version != config_.version) {
    note_once("refused worker " + uuid + ": it is version " + message.version +
              ", the coordinator " + config_.version);
    reply(peer,
          wire::Refused{"it is version " + message.version + ", the coordinator " +
                        config_.version + "; install the same version of hedgerow on both"});
    return;
  }
  if (message.build != config_.build) {
    note_once("workers of build " + message.build + " joined, the coordinator is " + config_.build +
              ": equal bytes are no longer promised");
  }
  if (const std::string text = contradiction(message, config_.planned); !text.empty())
    note_once(text);
  // An earlier incarnation died without a word, and with it what it held.
  for (const std::uint64_t token : tokens_of(uuid)) {
    const TaskRecord& task = *state_.holder(token);
    // The MPI stage's life is its launcher's to judge.
    if (task.id.stage == Stage::kFinetune || task.incarnation >= message.worker.incarnation)
      continue;
    fail_token(token,
               ErrorKind::kUnavailable,
               "its worker restarted as incarnation " + std::to_string(message.worker.incarnation));
  }
  bool keeps = false;
  if (message.held) {
    keeps = held_by(message.held->fencing_token, message.worker) != nullptr;
    if (keeps && !leases_.renew(message.held->fencing_token))
      leases_.grant(message.held->fencing_token);
    if (keeps && message.held->kind == wire::TaskKind::kFinetune) finetune_worker_ = uuid;
  }
  join(peer, message);
  const auto lease_seconds = static_cast<int>(
      std::chrono::duration_cast<std::chrono::seconds>(config_.leases.lease).count());
  const int heartbeat = std::clamp(lease_seconds / kHeartbeatsInALease, 1, kHeartbeatSeconds);
  reply(peer, wire::Welcome{term(), lease_seconds, heartbeat, keeps});
  if (must_stop(uuid)) reply(peer, *stopping_);
}

// Each gets a time of its own to ask again, so that those that came at once, as after a restart or
// at the end of a stage, do not come back at once.
wire::Idle Dispatcher::book_next_request() {
  const TimePoint soonest = clock_.now() + config_.idle;
  const TimePoint latest =
      soonest + kBetweenIdleRequests * static_cast<std::int64_t>(connected_.size());
  next_idle_request_ = std::clamp(next_idle_request_ + kBetweenIdleRequests, soonest, latest);
  const auto pause =
      std::chrono::ceil<std::chrono::milliseconds>(next_idle_request_ - clock_.now());
  return {static_cast<int>(pause.count())};
}

void Dispatcher::request(const std::string& peer, const wire::Request& message) {
  LiveWorker* worker = known(peer, message.worker);
  if (worker == nullptr) return;
  WorkerView& view = connected_[worker->view];
  view.held_block = message.held_block;
  if (must_stop(message.worker.uuid)) {
    reply(peer, *stopping_);
    return;
  }
  // It asks although it holds a task: the grant got lost on its way. Credit is 1, so it gets that
  // one again.
  const bool is_finetune = message.worker.uuid == finetune_worker_;
  for (const std::uint64_t token : tokens_of(is_finetune ? kMpiHolder : message.worker.uuid)) {
    if (held_by(token, message.worker) == nullptr) continue;
    leases_.renew(token);
    reply(peer, wire::Grant{wire_task(state_.grants.at(token), token)});
    return;
  }
  const std::optional<TaskId> id =
      choose_task(state_, view, connected_, config_.needs, config_.keep);
  if (id) {
    grant_to(message.worker.uuid, *worker, *id);
  } else {
    reply(peer, book_next_request());
  }
}

void Dispatcher::grant_to(const std::string& uuid, const LiveWorker& worker, const TaskId& id) {
  const std::uint64_t token = std::max(state_.last_token, config_.token_floor) + 1;
  if (!record(Granted{id, token, uuid, worker.incarnation, worker.device})) {
    reply(worker.peer, book_next_request());
    return;
  }
  leases_.grant(token);
  reply(worker.peer, wire::Grant{wire_task(id, token)});
}

wire::Task Dispatcher::wire_task(const TaskId& id, std::uint64_t token) const {
  wire::Task task = make_wire_task(state_, id, token);
  task.memory_bytes = need_of(id, config_.needs);
  if (task.inputs.size() <= kMaxInlineInputs) return task;
  const std::string name = storage::RunLayout::attempt_directory(token) + "/inputs.json";
  const std::filesystem::path path = layout_.resolve(name);
  config_.disk->make_directories(path.parent_path());
  const std::string text = nlohmann::json{{"inputs", storage::records_to_json(task.inputs)}}.dump();
  config_.disk->write_atomically(path, text);
  task.inputs.clear();
  task.inputs_file =
      storage::FileRecord{name, text.size(), storage::hash128(std::as_bytes(std::span(text)))};
  return task;
}

void Dispatcher::heartbeat(const std::string& peer, const wire::Heartbeat& message) {
  if (known(peer, message.worker) == nullptr) return;
  const bool valid =
      message.fencing_token != 0 && held_by(message.fencing_token, message.worker) != nullptr;
  if (valid) {
    leases_.renew(message.fencing_token);
    leases_.note_progress(message.fencing_token, message.progress);
  }
  reply(peer, wire::HeartbeatAck{message.fencing_token, valid || message.fencing_token == 0});
  if (must_stop(message.worker.uuid)) reply(peer, *stopping_);
}

void Dispatcher::checkpointed(const std::string& peer, const wire::Checkpointed& message) {
  if (known(peer, message.worker) == nullptr) return;
  const TaskRecord* task = held_by(message.fencing_token, message.worker);
  if (task == nullptr) {
    reply_fenced(peer, message.fencing_token);
    return;
  }
  leases_.renew(message.fencing_token);
  if (!task->checkpoint || task->checkpoint->file != message.file) {
    try {
      check_attempt_file(layout_, message.fencing_token, message.file, *config_.disk);
      record(CheckpointCommitted{message.fencing_token, message.step, message.file, task->id});
      // One place a stage: the worker trains on at this moment.
      storage::fault_point(task->id.stage == Stage::kFinetune ? "coordinator.checkpoint.finetune"
                                                              : "coordinator.checkpoint.transfer");
    } catch (const Error& error) {
      // Not found: its worker has replaced it since, and the newer one is on its way.
      if (error.kind() != ErrorKind::kNotFound) {
        fail_token(message.fencing_token, error.kind(), error.what());
        reply_fenced(peer, message.fencing_token);
        return;
      }
    }
  }
  reply(peer, wire::Committed{message.fencing_token, message.file.name});
}

void Dispatcher::shard_ready(const std::string& peer, const wire::ShardReady& message) {
  if (known(peer, message.worker) == nullptr) return;
  const TaskRecord* task = held_by(message.fencing_token, message.worker);
  if (task == nullptr || task->id.stage != Stage::kCapture) {
    reply_fenced(peer, message.fencing_token);
    return;
  }
  leases_.renew(message.fencing_token);
  const ShardRange range = shards_of_piece(*state_.geometry, task->id.piece);
  try {
    const bool in_range = message.shard >= range.first && message.shard < range.first + range.count;
    if (!in_range ||
        message.file.name != shard_name(task->id, message.shard, message.fencing_token)) {
      throw Error(ErrorKind::kInternal,
                  "shard " + message.file.name + " is not of " + to_string(task->id));
    }
    const ShardRecord& shard = state_.shards[static_cast<std::size_t>(task->id.block) + 1]
                                            [static_cast<std::size_t>(message.shard)];
    const bool repeated = shard.state == ShardState::kCommitted && shard.file == message.file;
    if (!repeated) {
      commit_file(layout_, message.fencing_token, message.file, *config_.disk);
      storage::fault_point("coordinator.shard.renamed");
      const ShardCommitted committed{message.fencing_token, message.shard, message.file, task->id};
      // Only after damage to the journal: another attempt's file counts as that shard.
      if (!record(committed))
        throw Error(ErrorKind::kInternal, shard.file.name + " is there already");
    }
  } catch (const Error& error) {
    fail_token(message.fencing_token, error.kind(), error.what());
    reply_fenced(peer, message.fencing_token);
    return;
  }
  reply(peer, wire::Committed{message.fencing_token, message.file.name});
}

void Dispatcher::done(const std::string& peer, const wire::Done& message) {
  LiveWorker* const worker = known(peer, message.worker);
  if (worker == nullptr) return;
  const std::uint64_t token = message.fencing_token;
  const std::string first = message.files.empty() ? "" : message.files.front().name;
  const TaskRecord* task = held_by(token, message.worker);
  if (task == nullptr) {
    // Said again because our reply got lost?
    const TaskRecord* finished = finished_under(token);
    if (finished != nullptr && finished->files == message.files) {
      reply(peer, wire::Committed{token, first});
    } else {
      reply_fenced(peer, token);
    }
    return;
  }
  try {
    if (!are_outputs(task->id, token, message.files)) {
      throw Error(ErrorKind::kInternal,
                  to_string(task->id) + " was done with other files than it must give");
    }
    for (const storage::FileRecord& file : message.files)
      commit_file(layout_, token, file, *config_.disk);
    if (!message.files.empty()) storage::fault_point("coordinator.output.renamed");
  } catch (const Error& error) {
    fail_token(token, error.kind(), error.what());
    reply_fenced(peer, token);
    return;
  }
  if (const auto speed = speed_of(message.result))
    worker->last_speed.emplace(task->id.stage, *speed);
  leases_.end(token);
  record(TaskDone{token, message.files, message.result, task->id});
  reply(peer, wire::Committed{token, first});
}

void Dispatcher::failed(const std::string& peer, const wire::Failed& message) {
  if (known(peer, message.worker) == nullptr) return;
  if (held_by(message.fencing_token, message.worker) == nullptr) {
    reply_fenced(peer, message.fencing_token);
    return;
  }
  bool is_gone = false;
  for (const std::string& name : message.damaged) {
    const bool is_lost = record(FileLost{name, message.message});
    is_gone = is_gone || (is_lost && !is_there(*config_.disk, layout_, name));
  }
  // A file that the task reads is gone, as we see ourselves: no fault of the task, however often.
  const bool is_to_blame = message.kind != ErrorKind::kNotFound || !is_gone;
  fail_token(
      message.fencing_token, is_to_blame ? message.kind : ErrorKind::kFenced, message.message);
  reply(peer, wire::Committed{message.fencing_token, ""});
}

void Dispatcher::released(const std::string& peer, const wire::Released& message) {
  if (known(peer, message.worker) == nullptr) return;
  const TaskRecord* task = held_by(message.fencing_token, message.worker);
  if (task == nullptr) {
    reply_fenced(peer, message.fencing_token);
    return;
  }
  // A rank that mpirun ends because another one died says what one says that was told to stop. How
  // the stage ended is its launcher's to judge, unless we asked for the end.
  if (task->id.stage == Stage::kFinetune) {
    gave_back_ = message.fencing_token;
    if (!must_stop(message.worker.uuid)) {
      reply(peer, wire::Committed{message.fencing_token, ""});
      return;
    }
  }
  static_cast<void>(close_attempt(message.fencing_token, nullptr));
  record(TaskReleased{message.fencing_token, message.reason});
  reply(peer, wire::Committed{message.fencing_token, ""});
}

void Dispatcher::goodbye(const wire::Goodbye& message) {
  const auto found = workers_.find(message.worker.uuid);
  if (found == workers_.end() || found->second.incarnation != message.worker.incarnation) return;
  forget(message.worker.uuid);
  for (const std::uint64_t token : tokens_of(message.worker.uuid)) {
    if (held_by(token, message.worker) == nullptr) continue;
    static_cast<void>(close_attempt(token, nullptr));
    record(TaskReleased{token, "its worker left"});
  }
}

}  // namespace hedgerow::coordinator
