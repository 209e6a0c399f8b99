#include "tests/simulator/oracle.hpp"

#include <cstdlib>

#include "storage/base/error.hpp"

namespace hedgerow::simulator {
namespace {

using coordinator::Event;
using coordinator::State;
using coordinator::TaskId;
using coordinator::TaskState;
using storage::RunLayout;

[[noreturn]] void broken(const std::string& promise) { throw BrokenPromise(promise); }

std::uint64_t term_of(const std::string& path) {
  return std::strtoull(path.c_str() + path.rfind('/') + 1, nullptr, 10);
}

struct Achieved {
  int done = 0, committed = 0;
};

Achieved achieved(const State& state) {
  Achieved sum;
  for (const auto& stage : state.index.counts)
    sum.done += stage[static_cast<std::size_t>(TaskState::kDone)];
  for (std::size_t boundary = 1; boundary < state.shards.size(); ++boundary)
    sum.committed +=
        static_cast<int>(state.shards[boundary].size()) - state.index.boundaries[boundary].missing;
  return sum;
}

std::string difference(const State& expected, const State& found) {
  return nlohmann::json::diff(state_to_json(expected), state_to_json(found)).dump().substr(0, 400);
}

bool may_undo(const Event& event) {
  return std::holds_alternative<coordinator::FileLost>(event) ||
         std::holds_alternative<coordinator::BoundaryDropped>(event) ||
         std::holds_alternative<coordinator::LogitsDropped>(event);
}

}  // namespace

void Oracle::on_replay(const storage::ReplayResult& replayed) {
  State folded = coordinator::fold(replayed).state;
  survivors_.clear();
  found_.reset();
  if (forgives_) {
    found_ = std::move(folded);
    return;
  }
  State expected = state_;
  for (const storage::JournalRecord& record : replayed.records) {
    if (record.seq <= last_seq_) continue;
    survivors_.push_back({{"seq", record.seq}, {"event", record.event}});
    static_cast<void>(coordinator::apply(expected, coordinator::event_from_json(record.event)));
  }
  if (!(expected == folded)) {
    broken("a restart found another state than the durable journal's: " +
           difference(expected, folded));
  }
}

void Oracle::on_synced(const std::string& path, std::string_view bytes) {
  const std::uint64_t term = term_of(path);
  // Whoever writes to a term after the next one's segment was made finds that out before it tells
  // anybody, and what it wrote may or may not be sealed.
  if (term < term_ || disk_.exists(layout_.journal_segment(term + 1))) return;
  if (std::exchange(term_, term) != term) {
    for (const nlohmann::json& record : std::exchange(survivors_, {}))
      take(record, /*is_found=*/true);
    if (found_) {
      state_ = std::move(*found_);
      found_.reset();
      forgives_ = false;
      know_what_is_there();
    }
  }
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) broken("half a line was synced");
    take(nlohmann::json::parse(bytes.substr(0, newline)), /*is_found=*/false);
    bytes.remove_prefix(newline + 1);
  }
}

void Oracle::take(const nlohmann::json& record, bool is_found) {
  last_seq_ = record.at("seq").get<std::uint64_t>();
  const Event event = coordinator::event_from_json(record.at("event"));
  ++coverage_.records;
  if (log) {
    const std::string subject = coordinator::subject_of(event, state_);
    log(std::string(type_of(event)) + " " + subject + ": " + coordinator::describe(event));
  }
  count(event);
  // What a restart found was written earlier, and its worker may have gone on since.
  if (!is_found) check_resume_point(event);
  const Achieved before = achieved(state_);
  if (const auto rejection = coordinator::apply(state_, event))
    broken("the journal holds " + std::string(type_of(event)) +
           ", which does not apply: " + rejection->reason);
  const Achieved after = achieved(state_);
  if ((after.done < before.done || after.committed < before.committed) && !may_undo(event))
    broken(std::string(type_of(event)) + " undid what was done");
  remember(event);
}

void Oracle::remember(const Event& event) {
  const auto commit = [this](const storage::FileRecord& file) {
    committed_.insert(file.name);
    const std::string path = layout_.root().native() + "/" + file.name;
    if (disk_.content(path) != nullptr && !disk_.is_durable(path))
      broken(file.name + " is committed, and a loss of power may take it away");
  };
  if (const auto* granted = std::get_if<coordinator::Granted>(&event))
    task_of_[granted->token] = granted->task;
  if (const auto* shard = std::get_if<coordinator::ShardCommitted>(&event)) commit(shard->file);
  if (const auto* checkpoint = std::get_if<coordinator::CheckpointCommitted>(&event))
    commit(checkpoint->file);
  if (const auto* done = std::get_if<coordinator::TaskDone>(&event)) {
    for (const storage::FileRecord& file : done->files) commit(file);
  }
}

// Before the event, while the attempt still holds its task. It looks at the disk as its end became
// durable, so a checkpoint that came by then may also be known.
void Oracle::check_resume_point(const Event& event) const {
  std::uint64_t token = 0;
  if (const auto* failed = std::get_if<coordinator::TaskFailed>(&event)) token = failed->token;
  if (const auto* revoked = std::get_if<coordinator::LeaseRevoked>(&event)) token = revoked->token;
  if (const auto* gone = std::get_if<coordinator::TaskReleased>(&event)) token = gone->token;
  const coordinator::TaskRecord* task = token == 0 ? nullptr : state_.holder(token);
  // After damage to the journal a token may have been another task's, and the directory with it.
  if (task == nullptr || task->id.stage == coordinator::Stage::kCapture) return;
  const auto entries = disk_.list(layout_.root() / RunLayout::attempt_directory(token));
  if (!entries) return;
  for (const storage::DiskEntry& entry : *entries) {
    const auto left = RunLayout::parse_checkpoint(entry.name);
    if (left && left->step > first_step(*task))
      broken(to_string(task->id) + " will do steps again that " + entry.name + " holds");
  }
}

// Names and tokens of records that were read and never seen to be written.
void Oracle::know_what_is_there() {
  for (const auto& [token, id] : state_.grants) task_of_[token] = id;
  for (const auto& boundary : state_.shards) {
    for (const coordinator::ShardRecord& shard : boundary) committed_.insert(shard.file.name);
  }
  for (const auto& [id, task] : state_.tasks) {
    for (const storage::FileRecord& file : task.files) committed_.insert(file.name);
  }
}

// Where the event finds the task that it is about.
void Oracle::count(const Event& event) {
  const auto met = [&](const TaskId& id) {
    const auto task = state_.tasks.find(id);
    if (task != state_.tasks.end())
      ++coverage_.table[std::string(type_of(event))][static_cast<std::size_t>(task->second.state)];
  };
  if (const auto* dropped = std::get_if<coordinator::BoundaryDropped>(&event)) {
    for (int piece = 0; piece < state_.geometry->num_pieces(); ++piece)
      met(TaskId::capture(dropped->boundary - 1, piece));
    return;
  }
  if (std::holds_alternative<coordinator::LogitsDropped>(event)) {
    for (int piece = 0; piece < state_.geometry->num_logit_pieces; ++piece)
      met(TaskId::logits(piece));
    return;
  }
  const std::string subject = coordinator::subject_of(event, state_);
  if (!subject.empty()) met(coordinator::task_id_from_string(subject));
}

void Oracle::on_received(const wire::Message& message) {
  static const std::map<std::string_view, std::string> events = {{"shard_ready", "shard_committed"},
                                                                 {"checkpointed", "checkpointed"},
                                                                 {"done", "done"},
                                                                 {"failed", "failed"},
                                                                 {"released", "released"}};
  const auto event = events.find(wire::type_of(message));
  if (event == events.end()) return;
  const std::uint64_t token = std::visit(
      [](const auto& m) -> std::uint64_t {
        if constexpr (requires { m.fencing_token; }) return m.fencing_token;
        return 0;
      },
      message);
  const auto task = task_of_.find(token);
  if (task == task_of_.end() || state_.holder(token) != nullptr) return;
  ++coverage_.fenced;
  ++coverage_.table[event->second][static_cast<std::size_t>(state_.task(task->second).state)];
}

void Oracle::on_sent_to_worker(const wire::Message& message) const {
  if (const auto* grant = std::get_if<wire::Grant>(&message)) {
    if (!task_of_.contains(grant->task.fencing_token))
      broken("a worker heard of a grant that is not in the durable journal");
  }
  if (const auto* committed = std::get_if<wire::Committed>(&message)) {
    // A checkpoint that its worker has replaced meanwhile is answered without a record.
    const bool is_checkpoint = committed->name.rfind("attempts/", 0) == 0;
    if (!committed->name.empty() && !is_checkpoint && !committed_.contains(committed->name))
      broken("a worker heard that " + committed->name +
             " is committed, and the durable journal does not say so");
  }
}

void Oracle::on_turn(std::uint64_t term,
                     const State& live,
                     const coordinator::Leases& leases,
                     bool whole) const {
  if (!disk_.collisions().empty()) broken("two attempts published " + disk_.collisions().front());
  if (term != term_) return;  // a stale one believes what it likes
  if (live.last_token != state_.last_token || live.grants != state_.grants)
    broken("the living coordinator's grants are not those of its journal");
  for (const auto& [token, id] : live.grants) {
    if (!leases.contains(token)) broken(to_string(id) + " is granted and has no lease");
    if (live.task(id).token != token) broken(to_string(id) + " is granted twice");
  }
  if (whole && !(live == state_))
    broken("the living coordinator's state is not the fold of its journal: " +
           difference(state_, live));
}

}  // namespace hedgerow::simulator
