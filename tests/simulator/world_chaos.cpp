// What goes wrong in a simulated world, and when.
#include <algorithm>
#include <csignal>

#include "tests/simulator/world_parts.hpp"

namespace hedgerow::simulator {
namespace {

using std::chrono::seconds;

}  // namespace

void World::note_fault(const std::string& name) {
  if (name.rfind("a message", 0) != 0) log("* " + name);
  FaultCount& count = coverage_.faults[name];
  ++(oracle_.state().grants.empty() ? count.idle : count.in_flight);
}

std::optional<std::size_t> World::any_member() {
  if (alive_.empty()) return std::nullopt;
  return alive_[random_.below(alive_.size())];
}

void World::fault() {
  if (is_calm()) return calm_down();
  later(random_.duration(milliseconds(1), 2 * scenario_.between_faults), Kind::kFault, 0);
  int kind = static_cast<int>(random_.below(kNumFaults));
  while ((scenario_.faults >> kind & 1U) == 0) kind = (kind + 1) % kNumFaults;
  strike(kind);
}

// Nothing new goes wrong from here on, and the run must come to its end.
void World::calm_down() {
  scenario_.mishaps.fails = scenario_.mishaps.hangs = 0.0;
  disk_.free = std::uint64_t{1} << 40;
  steps_until_crash_ = steps_until_error_ = 0;
  if (serving() == nullptr && !is_start_planned_ && !is_done_) later(seconds(1), Kind::kStart, 0);
}

void World::strike(int kind) {
  const auto until = [&](int low, int high) {
    return clock_.now() + random_.duration(seconds(low), seconds(high));
  };
  const std::optional<std::size_t> index = any_member();
  Member* member = index ? members_[*index].get() : nullptr;
  switch (kind) {
    case kKillWorker:
      if (member == nullptr) return;
      note_fault("a worker is killed");
      member->worker->kill(SIGKILL);
      return end_member(*index);
    case kPauseWorker:
      if (member == nullptr) return;
      note_fault("a worker is stopped for a while");
      member->paused_until = until(5, 120);
      return schedule_member(*index);
    case kTerminateWorker:
      if (member == nullptr) return;
      note_fault("a worker gets SIGTERM");
      member->worker->terminate();
      return schedule_member(*index);
    case kCutBothWays:
    case kCutToCoordinator:
    case kCutFromCoordinator:
      if (member == nullptr) return;
      note_fault(kind == kCutBothWays        ? "a link is cut both ways"
                 : kind == kCutToCoordinator ? "a link is cut to the coordinator"
                                             : "a link is cut from the coordinator");
      if (kind != kCutFromCoordinator) member->mute_until = until(5, 90);
      if (kind != kCutToCoordinator) member->deaf_until = until(5, 90);
      return;
    case kClockJump:
      note_fault("the wall clock jumps");
      return clock_.jump(seconds(random_.between(-3600, 3600)));
    case kDiskFull:
      note_fault("the disk is full for a while");
      disk_.free = 0;
      return later(random_.duration(seconds(5), seconds(120)), Kind::kRestore, 0);
    case kLoseFile:
    case kCorruptFile:
      return strike_file(kind == kCorruptFile);
    case kHostPower:
      return lose_power();
    case kCheck:
      return check_run();
    default:
      return strike_coordinator(kind);
  }
}

void World::strike_coordinator(int kind) {
  Post* post = serving();
  if (kind == kDamageJournal) {
    // Under a living coordinator it would be found at the next restart; so restart at once.
    const std::uint64_t term = 1 + random_.below(std::max<std::uint64_t>(1, oracle_.term()));
    note_fault("the journal is damaged");
    disk_.flip_a_bit(layout_.journal_segment(term).native(), random_);
    oracle_.forgive_losses();
    kind = kKillCoordinator;
  }
  if (post == nullptr) return;
  const auto index = static_cast<std::size_t>(
      std::find_if(posts_.begin(), posts_.end(), [&](const auto& p) { return p.get() == post; }) -
      posts_.begin());
  switch (kind) {
    case kKillCoordinator:
      note_fault("the coordinator is killed");
      return end_post(index, "a kill");
    case kKillAtDiskStep:
    case kPowerAtDiskStep:
      note_fault(kind == kKillAtDiskStep ? "the coordinator is killed at a disk step"
                                         : "the coordinator's host loses power at a disk step");
      fault_of_disk_ = kind == kKillAtDiskStep ? "kill" : "power";
      steps_until_crash_ = 1 + random_.below(20);
      return;
    case kDiskError:
      note_fault("the disk fails once");
      steps_until_error_ = 1 + random_.below(20);
      return;
    case kPauseCoordinator:
    case kUsurpCoordinator: {
      note_fault("the coordinator is stopped for a while");
      post->paused_until = clock_.now() + random_.duration(seconds(5), seconds(180));
      post->scheduled = Time::max();
      later(
          std::chrono::ceil<milliseconds>(post->paused_until - clock_.now()), Kind::kResume, index);
      if (kind == kPauseCoordinator) return;
      note_fault("another host takes over from a stopped one");
      return later(random_.duration(seconds(15), seconds(60)), Kind::kStart, 1 - post->host);
    }
    case kStopRun:
      note_fault("the run is asked to stop");
      post->stop_requests = static_cast<int>(random_.between(1, 2));
      return schedule_turn(index, milliseconds(1));
    default:
      return;
  }
}

// A committed one: a shard, a checkpoint, an artifact, a student.
void World::strike_file(bool corrupts) {
  std::vector<std::string> names;
  for (const auto& boundary : oracle_.state().shards) {
    for (const coordinator::ShardRecord& shard : boundary) {
      if (shard.state == coordinator::ShardState::kCommitted) names.push_back(shard.file.name);
    }
  }
  for (const auto& [id, task] : oracle_.state().tasks) {
    if (task.checkpoint) names.push_back(task.checkpoint->file.name);
    // What nothing reads any more would be missed by nobody but `check`.
    const bool is_read = id.stage == coordinator::Stage::kTransfer;
    if (is_read && phase_of(oracle_.state()) == coordinator::RunPhase::kRunning) {
      const auto& assembled = oracle_.state().tasks.at(coordinator::TaskId::assemble());
      if (assembled.state != coordinator::TaskState::kDone)
        for (const storage::FileRecord& file : task.files) names.push_back(file.name);
    }
  }
  if (names.empty()) return;
  const std::string& name = names[random_.below(names.size())];
  const std::string path = std::string(kRoot) + "/" + name;
  struck_.insert(name);
  note_fault(corrupts ? "a committed file rots" : "a committed file is lost");
  if (corrupts) {
    disk_.flip_a_bit(path, random_);
  } else {
    disk_.remove(path);
  }
}

// `hedgerow check --repair`, while no coordinator is at work: what was struck is journaled as lost.
void World::check_run() {
  if (serving() != nullptr || !disk_.exists(layout_.journal_directory())) return;
  steps_until_crash_ = steps_until_error_ = 0;  // those were the coordinator's
  const storage::ReplayResult replayed = coordinator::replay_if_any(layout_, disk_);
  oracle_.on_replay(replayed);
  coordinator::State state = coordinator::fold(replayed).state;
  std::vector<coordinator::Event> events;
  for (const std::string& name : struck_) {
    const coordinator::Event lost = coordinator::FileLost{name, "found by check"};
    if (!apply(state, lost)) events.push_back(lost);
  }
  if (events.empty()) return;
  note_fault("check marks files as lost");
  storage::Journal journal = storage::Journal::start_term(layout_, replayed, disk_, clock_.utc());
  for (const coordinator::Event& event : events) journal.append(event_to_json(event), clock_.utc());
  journal.commit();
}

void World::lose_power() {
  const std::size_t host = random_.below(hosts_.size());
  note_fault("a host loses power");
  const std::vector<std::size_t> before = alive_;
  for (const std::size_t index : before) {
    if (members_[index]->host != host) continue;
    members_[index]->worker->kill(SIGKILL);
    end_member(index);
  }
  for (std::size_t index = 0; index < posts_.size(); ++index) {
    if (posts_[index]->is_alive && posts_[index]->host == host) end_post(index, "a loss of power");
  }
  disk_.lose_power(random_);
}

}  // namespace hedgerow::simulator
