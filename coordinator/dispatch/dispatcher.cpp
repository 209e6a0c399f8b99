#include "coordinator/dispatch/dispatcher.hpp"

#include <algorithm>

#include "coordinator/dispatch/actions.hpp"
#include "coordinator/dispatch/commit.hpp"
#include "storage/base/fault_point.hpp"

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
// Of one line of the log, which may quote what a peer sent.
constexpr std::size_t kLongestLine = 500;

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
  if (const std::optional<Rejection> rejection = apply(state_, event)) {
    log("events that were rejected",
        "event " + std::string(type_of(event)) + " rejected: " + rejection->reason);
    return false;
  }
  pending_.push_back({journal_.append(event_to_json(event), clock_.utc()), event});
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
  const bool has_checkpoints =
      task.id.stage == Stage::kTransfer || task.id.stage == Stage::kFinetune;
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
                     layout_.root().string() + ", the next file needs " +
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

}  // namespace hedgerow::coordinator
