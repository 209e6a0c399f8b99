#include "coordinator/dispatcher.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "coordinator/actions.hpp"
#include "storage/fault_point.hpp"
#include "storage/file.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;

// A worker without a task asks twice a second; one that is silent this long is gone.
constexpr std::chrono::seconds kForgetWorkerAfter{60};

}  // namespace

// Routes each message to its handler; what only coordinators send is refused by name.
struct Dispatcher::Visitor {
  Dispatcher& desk;
  const std::string& peer;

  void operator()(const wire::Hello& m) const { desk.hello(peer, m); }
  void operator()(const wire::Request& m) const { desk.request(peer, m); }
  void operator()(const wire::Heartbeat& m) const { desk.heartbeat(peer, m); }
  void operator()(const wire::Checkpointed& m) const { desk.checkpointed(peer, m); }
  void operator()(const wire::ShardReady& m) const { desk.shard_ready(peer, m); }
  void operator()(const wire::Done& m) const { desk.done(peer, m); }
  void operator()(const wire::Failed& m) const { desk.failed(peer, m); }
  void operator()(const wire::Released& m) const { desk.released(peer, m); }
  void operator()(const wire::Goodbye& m) const { desk.goodbye(m); }
  template <typename T>
  void operator()(const T& m) const {
    desk.reply(peer, wire::Refused{std::string(wire::type_of(m)) + " is a coordinator's message"});
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
      fit_(config_.needs, config_.own_workers) {
  for (const auto& [token, id] : state_.grants) {
    leases_.grant(token, id.stage == Stage::kFinetune ? kMpiStartTerm : std::chrono::seconds{});
  }
}

void Dispatcher::receive(const std::string& peer, std::string_view frame) {
  const std::optional<std::uint32_t> protocol = wire::protocol_of(frame);
  if (!protocol) {
    spdlog::warn("dropped {} bytes that are no hedgerow message", frame.size());
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
    spdlog::warn("dropped a damaged message: {}", error.what());
  }
}

bool Dispatcher::record(const Event& event) {
  if (const std::optional<Rejection> rejection = apply(state_, event)) {
    spdlog::warn("event {} rejected: {}", type_of(event), rejection->reason);
    return false;
  }
  pending_.push_back({journal_.append(event_to_json(event)), event});
  return true;
}

std::vector<Outgoing> Dispatcher::flush() {
  if (!pending_.empty()) {
    journal_.commit();
    storage::fault_point("coordinator.journal.committed");
    recorded_.insert(recorded_.end(), pending_.begin(), pending_.end());
    pending_.clear();
    if (journal_.wants_snapshot()) journal_.write_snapshot(state_to_json(state_));
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

void Dispatcher::fail_token(std::uint64_t token, ErrorKind kind, const std::string& message) {
  if (state_.holder(token) == nullptr) return;
  leases_.end(token);
  if (reaction_to(kind) == Reaction::kForget) {
    record(TaskReleased{token, message});
    return;
  }
  record(TaskFailed{token, kind, message});
  if (reaction_to(kind) != Reaction::kCheckRoom) return;
  const std::uint64_t free = storage::free_bytes(layout_.root());
  if (free >= config_.room_for_retry) return;
  fatal_.emplace(ErrorKind::kExhausted,
                 message + "; " + std::to_string(free >> 20) + " MiB are free in " +
                     layout_.root().string() + ", the next file needs " +
                     std::to_string(config_.room_for_retry >> 20) +
                     " MiB; nothing is lost: free space, then run the same command again");
}

void Dispatcher::worker_died(const std::string& uuid,
                             std::uint64_t incarnation,
                             ErrorKind kind,
                             const std::string& how) {
  std::vector<std::uint64_t> held;
  for (const auto& [token, id] : state_.grants) {
    const TaskRecord& task = state_.task(id);
    if (task.worker == uuid && task.incarnation == incarnation) held.push_back(token);
  }
  for (const std::uint64_t token : held) fail_token(token, kind, how);
  const auto found = workers_.find(uuid);
  if (found != workers_.end() && found->second.hello.worker.incarnation == incarnation)
    workers_.erase(found);
}

void Dispatcher::stop_workers(const std::string& reason, Spare spare) {
  stopping_ = reason;
  spare_ = spare;
  for (const auto& [uuid, worker] : workers_) {
    if (must_stop(uuid)) reply(worker.peer, wire::Stop{reason});
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
      leases_.end(ended.token);
      record(LeaseRevoked{ended.token, ended.reason});
    }
  }
  const TimePoint now = clock_.now();
  std::erase_if(workers_, [&](const auto& entry) {
    const bool holds =
        std::any_of(state_.grants.begin(), state_.grants.end(), [&](const auto& grant) {
          return state_.task(grant.second).worker == entry.first;
        });
    return !holds && now - entry.second.last_seen > kForgetWorkerAfter;
  });
  check_second_workers();
  check_fit();
}

std::vector<WorkerView> Dispatcher::connected() const {
  std::vector<WorkerView> views;
  for (const auto& [uuid, live] : workers_)
    views.push_back({uuid, live.hello.memory_bytes, live.held_block});
  return views;
}

void Dispatcher::check_fit() {
  if (stopping_) return;  // workers leave, and those that stay longest need not be the largest
  for (const TaskId& id : fit_.look(state_, connected(), clock_.now()))
    record(Quarantined{id, fit_.shown().at(id)});
}

void Dispatcher::check_second_workers() {
  const TimePoint now = clock_.now();
  std::vector<TaskId> given_up;
  for (const auto& [id, task] : state_.tasks) {
    if (task.state != TaskState::kPending || !wants_second_worker(task)) {
      waiting_for_second_worker_.erase(id);
      continue;
    }
    const auto [since, first_seen] = waiting_for_second_worker_.emplace(id, now);
    if (now - since->second >= config_.second_worker_patience) given_up.push_back(id);
  }
  for (const TaskId& id : given_up) {
    waiting_for_second_worker_.erase(id);
    record(
        Quarantined{id, quarantine_reason(state_.task(id)) + "; no second worker came to try it"});
  }
}

}  // namespace hedgerow::coordinator
