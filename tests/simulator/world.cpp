#include "tests/simulator/world.hpp"

#include <algorithm>
#include <csignal>
#include <ctime>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/dispatch/task_kinds.hpp"
#include "coordinator/serve/assembler.hpp"
#include "storage/base/error.hpp"
#include "tests/simulator/world_parts.hpp"

namespace hedgerow::simulator {
namespace {

using coordinator::Subject;
using coordinator::TaskId;
using std::chrono::seconds;
using storage::Error;
using storage::ErrorKind;

constexpr std::time_t kFirstDay = 1'767'225'600;  // 2026-01-01

std::string option(const std::vector<std::string>& argv, const std::string& name) {
  const auto found = std::find(argv.begin(), argv.end(), name);
  return found == argv.end() || found + 1 == argv.end() ? "" : *(found + 1);
}

}  // namespace

std::string VirtualClock::utc() const {
  const std::time_t wall =
      std::chrono::floor<seconds>(now_.time_since_epoch() + wall_offset_).count() + kFirstDay;
  std::tm parts{};
  ::gmtime_r(&wall, &parts);
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S.000Z", &parts);
  return text.data();
}

bool World::Host::is_alive(const wire::ProcessId& id) const {
  for (const auto& post : world_.posts_) {
    if (post->id == id) return post->is_alive;
  }
  const auto member = static_cast<std::size_t>(id.start_ticks);
  return member < world_.members_.size() && world_.members_[member]->id == id &&
         !world_.members_[member]->worker->exit();
}

wire::ProcessId World::Host::start(const std::vector<std::string>& argv,
                                   const std::filesystem::path&,
                                   std::optional<int>) {
  WorkerSetup setup{
      .uuid = option(argv, "--worker"),
      .incarnation = std::strtoull(option(argv, "--incarnation").c_str(), nullptr, 10),
      .host = name_,
      .endpoint = option(argv, "--connect"),
      .holds = 0};
  if (argv.front() == "mpirun") {
    setup.holds = std::strtoull(option(argv, "--token").c_str(), nullptr, 10);
    setup.uuid = "rank0-" + std::to_string(setup.holds);
    setup.incarnation = 1;
  }
  return world_.members_[world_.add_member(std::move(setup), index_, false)]->id;
}

std::optional<coordinator::ProcessExit> World::Host::reap(const wire::ProcessId& child) {
  return world_.members_.at(child.start_ticks)->worker->exit();
}

void World::Host::signal_group(const wire::ProcessId& leader, int number) {
  const auto index = static_cast<std::size_t>(leader.start_ticks);
  Member& member = *world_.members_.at(index);
  if (member.worker->exit()) return;
  if (number == SIGKILL) {
    member.worker->kill(SIGKILL);
    world_.end_member(index);
  } else {
    member.worker->terminate();
    world_.schedule_member(index);
  }
}

World::World(const Scenario& scenario)
    : scenario_(scenario),
      random_(mix(scenario.seed, 4711)),
      layout_(kRoot),
      oracle_(layout_, disk_, coverage_),
      begin_(clock_.now()),
      chaos_ends_(clock_.now() + scenario.chaos_ends) {
  disk_.on_synced = [this](const std::string& path, std::string_view bytes) {
    if (path.ends_with(".jsonl")) oracle_.on_synced(path, bytes);
  };
  disk_.before_step = [this] {
    if (steps_until_crash_ > 0 && --steps_until_crash_ == 0) throw Crash{};
    if (steps_until_error_ > 0 && --steps_until_error_ == 0)
      throw Error(random_.chance(0.5) ? ErrorKind::kExhausted : ErrorKind::kUnavailable,
                  "the disk fails");
  };
  hosts_.push_back(std::make_unique<Host>(*this, 0, "alpha"));
  hosts_.push_back(std::make_unique<Host>(*this, 1, "beta"));
  later(milliseconds(0), Kind::kStart, 0);
  is_start_planned_ = true;
  for (int i = 0; i < scenario_.elastic_workers; ++i)
    later(random_.duration(milliseconds(0), milliseconds(20'000)),
          Kind::kJoin,
          0,
          "guest-" + std::to_string(++last_guest_));
  later(scenario_.between_faults, Kind::kFault, 0);
}

World::~World() = default;

void World::log_to(std::FILE* stream) {
  log_ = stream;
  oracle_.log = [this](const std::string& text) { log(text); };
}

void World::log(const std::string& text) {
  if (log_ == nullptr) return;
  const double at = std::chrono::duration<double>(clock_.now() - begin_).count();
  std::fprintf(log_, "%10.3f  %s\n", at, text.c_str());
}

void World::run() {
  coverage_.runs = 1;
  try {
    while (!is_done_) {
      if (queue_.empty()) throw BrokenPromise("nothing happens any more, and the run is not done");
      Happening next = std::move(const_cast<Happening&>(queue_.top()));
      queue_.pop();
      if (next.at > chaos_ends_ + scenario_.must_end_within)
        throw BrokenPromise("the run does not come to its end: " + describe());
      clock_.set(next.at);
      ++coverage_.events;
      trace(static_cast<std::uint64_t>(next.kind) * 1000 + next.who);
      trace(static_cast<std::uint64_t>(next.at.time_since_epoch().count()));
      happen(std::move(next));
    }
    check_end();
  } catch (const BrokenPromise& broken) {
    throw BrokenPromise(std::string(broken.what()) + " (" +
                        std::to_string((clock_.now() - begin_) / milliseconds(1)) + " ms, event " +
                        std::to_string(coverage_.events) + ")");
  }
  coverage_.virtual_hours =
      std::chrono::duration<double, std::ratio<3600>>(clock_.now() - begin_).count();
}

std::string World::describe() const {
  std::string text = std::to_string(oracle_.state().grants.size()) + " granted, " +
                     std::to_string(oracle_.state().index.ready.size()) + " ready";
  for (const auto& post : posts_) {
    if (post->is_alive)
      text += "; coordinator on " + hosts_[post->host]->name() + " at " + post->mailbox->endpoint();
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(alive_.size(), 10); ++i)
    text += "; " + members_[alive_[i]]->worker->describe();
  return text;
}

void World::later(
    milliseconds delay, Kind kind, std::size_t who, std::string peer, std::string frame) {
  queue_.push({clock_.now() + delay, order_++, kind, who, std::move(peer), std::move(frame)});
}

void World::happen(Happening happening) {
  switch (happening.kind) {
    case Kind::kToPost: {
      Post& post = *posts_[happening.who];
      if (!post.is_alive) return;
      post.mailbox->inbox.push_back({std::move(happening.peer), std::move(happening.frame)});
      return schedule_turn(happening.who, kBusyTurn);
    }
    case Kind::kToMember: {
      Member& member = *members_[happening.who];
      // A frame of a connection that it has given up meanwhile is gone with it.
      if (member.worker->exit() || member.worker->endpoint() != happening.peer ||
          clock_.now() < member.deaf_until)
        return;
      member.worker->deliver(std::move(happening.frame));
      return step_member(happening.who);
    }
    case Kind::kMember:
      if (happening.at != members_[happening.who]->scheduled) return;
      members_[happening.who]->scheduled = Time::max();
      return step_member(happening.who);
    case Kind::kTurn:
      if (happening.at == posts_[happening.who]->scheduled) turn(happening.who);
      return;
    case Kind::kStart:
      is_start_planned_ = false;
      return start_coordinator(happening.who);
    case Kind::kJoin: {
      if (serving() == nullptr && !disk_.exists(layout_.coordinator_file()))
        return later(seconds(5), Kind::kJoin, happening.who, happening.peer);
      const auto& file = coordinator_file();
      static_cast<void>(add_member({.uuid = happening.peer,
                                    .incarnation = happening.who + 1,
                                    .host = "gamma",
                                    .endpoint = file ? file->endpoint : "sim://nowhere"},
                                   2,
                                   true));
      return;
    }
    case Kind::kFault:
      return fault();
    case Kind::kResume:
      return schedule_turn(happening.who, kBusyTurn);
    case Kind::kRestore:
      disk_.free = std::uint64_t{1} << 40;
      return;
  }
}

// Worker -> coordinator. The network is worse than TCP, which would not double nor reorder.
void World::send_to_post(std::size_t member,
                         const std::string& endpoint,
                         const std::string& frame) {
  const auto post = post_at_.find(endpoint);
  if (post == post_at_.end() || !posts_[post->second]->is_alive) return;
  carry({{}, 0, Kind::kToPost, post->second, "w" + std::to_string(member), frame},
        clock_.now() < members_[member]->mute_until);
}

void World::send_to_member(const std::string& endpoint,
                           const std::string& peer,
                           std::string_view frame) {
  const auto index = static_cast<std::size_t>(std::strtoull(peer.c_str() + 1, nullptr, 10));
  if (frame.find("\"type\":\"grant\"") != std::string_view::npos ||
      frame.find("\"type\":\"committed\"") != std::string_view::npos)
    oracle_.on_sent_to_worker(wire::decode(frame));
  if (members_[index]->worker->exit()) return;
  carry({{}, 0, Kind::kToMember, index, endpoint, std::string(frame)},
        clock_.now() < members_[index]->deaf_until);
}

void World::carry(const Happening& happening, bool is_cut) {
  if (is_cut) return;
  const bool chaotic = !is_calm();
  if (chaotic && random_.chance(scenario_.lost)) return note_fault("a message is lost");
  const int copies = chaotic && random_.chance(scenario_.doubled) ? 2 : 1;
  if (copies > 1) note_fault("a message is doubled");
  for (int copy = 0; copy < copies; ++copy) {
    milliseconds delay = random_.duration(milliseconds(1), milliseconds(4));
    if (chaotic && random_.chance(scenario_.delayed)) {
      note_fault("a message is late");
      delay = random_.duration(milliseconds(100), milliseconds(300'000));  // up to 10 leases
    }
    later(delay, happening.kind, happening.who, happening.peer, happening.frame);
  }
}

std::size_t World::add_member(WorkerSetup setup, std::size_t host, bool is_elastic) {
  const std::size_t index = members_.size();
  auto member = std::make_unique<Member>();
  member->host = host;
  member->is_elastic = is_elastic;
  member->id = {next_pid_++, index};
  member->worker = std::make_unique<SimWorker>(
      std::move(setup), layout_, disk_, scenario_.load, scenario_.mishaps, random_, clock_.now());
  member->worker->look = [this, host]() -> const wire::CoordinatorFile* {
    const auto& file = coordinator_file();
    if (!file) return nullptr;
    const bool sees_it = host < hosts_.size() && file->host == hosts_[host]->name();
    return sees_it && !hosts_[host]->is_alive(file->process) ? nullptr : &*file;
  };
  members_.push_back(std::move(member));
  alive_.push_back(index);
  schedule_member(index);
  return index;
}

void World::schedule_member(std::size_t index) {
  Member& member = *members_[index];
  if (member.worker->exit()) return;
  const Time due =
      std::max({member.worker->next_due(), clock_.now() + milliseconds(1), member.paused_until});
  const auto delay = std::chrono::ceil<milliseconds>(due - clock_.now());
  if (clock_.now() + delay == member.scheduled) return;
  member.scheduled = clock_.now() + delay;
  later(delay, Kind::kMember, index);
}

void World::step_member(std::size_t index) {
  Member& member = *members_[index];
  if (member.worker->exit()) return;
  if (clock_.now() >= member.paused_until) {
    for (const std::string& frame : member.worker->step(clock_.now()))
      send_to_post(index, member.worker->endpoint(), frame);
    if (member.worker->is_hanging() && !std::exchange(member.is_hanging, true))
      note_fault("a worker hangs");
  }
  if (member.worker->exit()) return end_member(index);
  schedule_member(index);
}

void World::end_member(std::size_t index) {
  std::erase(alive_, index);
  const Member& member = *members_[index];
  const WorkerSetup& setup = member.worker->setup();
  if (member.worker->exit()->signal == SIGSEGV) note_fault("a task kills its worker");
  if (!member.is_elastic || is_done_) return;
  // Slurm or Kubernetes bring it back, or another one.
  const bool is_other = random_.chance(0.2);
  later(random_.duration(milliseconds(1000), milliseconds(60'000)),
        Kind::kJoin,
        is_other ? 0 : setup.incarnation,
        is_other ? "guest-" + std::to_string(++last_guest_) : setup.uuid);
}

void World::check_file(const storage::FileRecord& record,
                       const std::string& kind,
                       std::uint64_t value) const {
  const std::string* text = disk_.content(std::string(kRoot) + "/" + record.name);
  if (text == nullptr) throw BrokenPromise(record.name + " is committed and does not exist");
  if (*text != file_text(kind, value))
    throw BrokenPromise(record.name + " holds other bytes than an undisturbed run's");
}

void World::check_end() const {
  const coordinator::State& state = oracle_.state();
  const coordinator::Geometry& geometry = *state.geometry;
  if (!(geometry == scenario_.geometry)) throw BrokenPromise("the run ended in another shape");
  std::uint64_t student = 9, adapter = 77, evaluated = 5;
  // A run with a poisoned task ends without: what rotted meanwhile was never read again.
  const bool is_assembled = state.task(TaskId::assemble()).state == coordinator::TaskState::kDone;
  for (const auto& [id, task] : state.tasks) {
    if (id.stage != coordinator::Stage::kTransfer) continue;
    const std::uint64_t value =
        artifact_value(id.block, geometry.num_shards, task.seed, scenario_.load.transfer_steps);
    student = mix(student, value);
    const bool is_done = task.state == coordinator::TaskState::kDone;
    if (is_assembled && is_done && !struck_.contains(task.files.front().name))
      check_file(task.files.front(), "artifact", value);
  }
  // What a task reads of another is each of its files.
  const auto with_files_of = [](const TaskId& id, std::uint64_t value, std::uint64_t of_each) {
    for (std::size_t i = 0; i < coordinator::kind_of(id.stage).outputs(id, 1).size(); ++i)
      value = mix(value, of_each);
    return value;
  };
  adapter = with_files_of(TaskId::assemble(), adapter, student);
  for (int piece = 0; piece < geometry.num_logit_pieces; ++piece)
    adapter = mix(adapter, logits_value(geometry, piece));
  for (int step = 0; step < scenario_.load.finetune_steps; ++step)
    adapter = mix(adapter, static_cast<std::uint64_t>(step));
  const auto check = [&](const TaskId& id, const std::string& kind, std::uint64_t value) {
    const auto task = state.tasks.find(id);
    if (task == state.tasks.end() || task->second.state != coordinator::TaskState::kDone) return;
    for (const storage::FileRecord& file : task->second.files) check_file(file, kind, value);
  };
  check(TaskId::assemble(), "student", student);
  for (int piece = 0; piece < geometry.num_logit_pieces; ++piece)
    check(TaskId::logits(piece), "logits", logits_value(geometry, piece));
  check(TaskId::finetune(), "adapter", adapter);
  const auto check_evaluation = [&](Subject subject, std::uint64_t read) {
    std::uint64_t whole = geometry.num_evaluate_pieces > 0 ? evaluated : read;
    for (int piece = 0; piece < geometry.num_evaluate_pieces; ++piece) {
      const std::uint64_t value = mix(read, static_cast<std::uint64_t>(piece));
      check(TaskId::evaluate(subject, piece), "evaluation", value);
      whole = mix(whole, value);
    }
    check(TaskId::evaluate(subject), "evaluation", whole);
  };
  check_evaluation(Subject::kTeacher, evaluated);
  const std::uint64_t of_student = with_files_of(TaskId::assemble(), evaluated, student);
  check_evaluation(Subject::kTransfer, of_student);
  check_evaluation(Subject::kLora, with_files_of(TaskId::finetune(), of_student, adapter));
}

}  // namespace hedgerow::simulator
