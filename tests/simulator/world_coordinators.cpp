// Coordinator processes of a simulated world: how `hedgerow run` begins one, its turns, its ends.
#include <algorithm>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/dispatch/task_kinds.hpp"
#include "coordinator/serve/assembler.hpp"
#include "storage/base/error.hpp"
#include "tests/simulator/world_parts.hpp"

namespace hedgerow::simulator {
namespace {

using coordinator::RunPhase;
using coordinator::TaskId;
using std::chrono::seconds;
using storage::Error;
using storage::ErrorKind;

constexpr milliseconds kIdleTurn{500};

}  // namespace

World::Post* World::serving() {
  for (const auto& post : posts_) {
    if (post->is_alive) return post.get();
  }
  return nullptr;
}

const std::optional<wire::CoordinatorFile>& World::coordinator_file() {
  const std::string* text = disk_.content(layout_.coordinator_file());
  if (text == nullptr) {
    known_text_.clear();
    known_file_.reset();
  } else if (*text != known_text_) {
    known_text_ = *text;
    known_file_ = wire::read_coordinator_file(layout_, disk_);
  }
  return known_file_;
}

// As `hedgerow run` does it: refused while somebody is at work here, or elsewhere with a growing
// beat.
void World::start_coordinator(std::size_t host) {
  const auto& file = coordinator_file();
  const auto holder = std::find_if(posts_.begin(), posts_.end(), [&](const auto& post) {
    return file && post->is_alive && post->id == file->process;
  });
  const bool is_held = holder != posts_.end() &&
                       ((*holder)->host == host || clock_.now() >= (*holder)->paused_until);
  if (is_held || is_done_) return;
  try {
    open_post(host);
    return;
  } catch (const Crash&) {
    ++coverage_.ends[fault_of_disk_ + " while it began"];
    if (fault_of_disk_ == "power") disk_.lose_power(random_);
  } catch (const Error& error) {
    ++coverage_.ends["an error while it began"];
    if (error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kInternal)
      throw BrokenPromise(std::string("a start failed: ") + error.what());
  }
  steps_until_crash_ = steps_until_error_ = 0;
  is_start_planned_ = true;
  later(random_.duration(milliseconds(1000), milliseconds(30'000)), Kind::kStart, random_.below(2));
}

coordinator::DispatcherConfig World::dispatcher_config(std::size_t host,
                                                       const storage::ReplayResult& replayed) {
  coordinator::DispatcherConfig dispatcher;
  dispatcher.keep = scenario_.keep;
  dispatcher.token_floor = coordinator::token_floor(layout_, replayed, disk_);
  dispatcher.room_for_retry = 1U << 20;
  dispatcher.idle = seconds(5);
  dispatcher.disk = &disk_;
  dispatcher.version = "1";
  dispatcher.build = "simulated";
  dispatcher.log = [this](const std::string& line) { log(line); };
  if (scenario_.elastic_workers == 0) {
    for (int slot = 0; slot < scenario_.local_workers; ++slot)
      dispatcher.own_workers.push_back(coordinator::local_worker_uuid(slot, hosts_[host]->name()));
  }
  return dispatcher;
}

void World::open_post(std::size_t host) {
  log("# a coordinator begins on " + hosts_[host]->name());
  const storage::ReplayResult replayed = coordinator::replay_if_any(layout_, disk_);
  oracle_.on_replay(replayed);
  coordinator::FoldedRun folded = coordinator::fold(replayed);
  if (phase_of(folded.state) == RunPhase::kDone) {
    is_done_ = true;
    return;
  }
  const std::optional<wire::CoordinatorFile> previous = coordinator_file();
  auto post = std::make_unique<Post>();
  post->host = host;
  post->id = {next_pid_++, 1'000'000 + posts_.size()};
  coordinator::Term term =
      coordinator::open_term(layout_, replayed, std::move(folded), clock_, disk_);
  // The port of the last one if it was on this host, and free.
  const bool same_port = previous && previous->host == hosts_[host]->name() && random_.chance(0.5);
  post->mailbox = std::make_unique<Mailbox>(
      *this, same_port ? previous->endpoint : "sim://" + std::to_string(posts_.size()));
  const coordinator::DispatcherConfig dispatcher = dispatcher_config(host, replayed);
  hosts_[host]->speaker = post->id;
  const coordinator::Environment environment{
      .mailbox = *post->mailbox,
      .clock = clock_,
      .processes = *hosts_[host],
      .disk = disk_,
      .host = hosts_[host]->name(),
      .assemble = [this](const coordinator::State& state, std::uint64_t token) {
        return assemble(state, token);
      }};
  post->core = std::make_unique<coordinator::Coordinator>(
      coordinator::CoordinatorConfig{.layout = layout_,
                                     .dispatcher = dispatcher,
                                     .launcher = {.worker_binary = "hedgerow-worker",
                                                  .run_directory = kRoot,
                                                  .logs = layout_.logs(),
                                                  .local_workers = scenario_.local_workers,
                                                  .ranks = 2,
                                                  .processes = hosts_[host].get(),
                                                  .host = hosts_[host]->name()},
                                     .retries_with_new_seed = scenario_.reseeds,
                                     .stop_requests = &post->stop_requests},
      environment,
      std::move(term),
      previous,
      nullptr);
  begin_term(
      post->core->dispatcher(), scenario_.geometry, {}, "simulated", "simulated", "seed = 0");
  post_at_[post->mailbox->endpoint()] = posts_.size();
  posts_.push_back(std::move(post));
  schedule_turn(posts_.size() - 1, kBusyTurn);
}

void World::schedule_turn(std::size_t index, milliseconds delay) {
  Post& post = *posts_[index];
  const Time at = std::max(clock_.now() + delay, post.paused_until);
  if (!post.is_alive || post.scheduled <= at) return;
  post.scheduled = at;
  later(std::chrono::ceil<milliseconds>(at - clock_.now()), Kind::kTurn, index);
}

void World::turn(std::size_t index) {
  Post& post = *posts_[index];
  if (!post.is_alive) return;
  post.scheduled = Time::max();
  for (const auto& incoming : post.mailbox->inbox) {
    static constexpr std::string_view kCounted[] = {"\"type\":\"shard_ready\"",
                                                    "\"type\":\"checkpointed\"",
                                                    "\"type\":\"done\"",
                                                    "\"type\":\"failed\"",
                                                    "\"type\":\"released\""};
    if (std::any_of(std::begin(kCounted), std::end(kCounted), [&](std::string_view type) {
          return incoming.frame.find(type) != std::string::npos;
        }))
      oracle_.on_received(wire::decode(incoming.frame));
  }
  hosts_[post.host]->speaker = post.id;
  try {
    post.core->turn(milliseconds(0));
    const coordinator::Dispatcher& dispatcher = post.core->dispatcher();
    oracle_.on_turn(dispatcher.term(),
                    dispatcher.state(),
                    dispatcher.leases(),
                    turns_++ % scenario_.turns_per_comparison == 0);
    if (post.core->is_over()) return end_post(index, "its own decision");
    return schedule_turn(index, kIdleTurn);
  } catch (const Crash&) {
    const bool power = fault_of_disk_ == "power";
    end_post(index, power ? "a loss of power at a disk step" : "a kill at a disk step");
    if (power) disk_.lose_power(random_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kFenced) post.core->abandon_children();
    end_post(index, "an error: " + std::string(storage::to_string(error.kind())));
  }
  steps_until_crash_ = steps_until_error_ = 0;
}

void World::end_post(std::size_t index, const std::string& how) {
  Post& post = *posts_[index];
  post.is_alive = false;
  post.core.reset();
  ++coverage_.ends[how];
  log("# a coordinator ended by " + how);
  const RunPhase phase = phase_of(oracle_.state());
  const bool gives_up =
      phase == RunPhase::kPartial && !scenario_.mishaps.poison.empty() && is_calm();
  if (phase == RunPhase::kDone || gives_up) {
    is_done_ = serving() == nullptr || phase == RunPhase::kDone;
    if (is_done_) return;
  }
  if (is_start_planned_ || serving() != nullptr) return;
  is_start_planned_ = true;
  later(random_.duration(milliseconds(500), milliseconds(60'000)),
        Kind::kStart,
        random_.chance(0.8) ? post.host : 1 - post.host);
}

std::vector<storage::FileRecord> World::assemble(const coordinator::State& state,
                                                 std::uint64_t token) {
  std::uint64_t value = 9;
  for (const auto& [id, task] : state.tasks) {
    if (id.stage != coordinator::Stage::kTransfer) continue;
    if (task.state != coordinator::TaskState::kDone || task.files.empty())
      throw BrokenPromise("assembling, and " + to_string(id) + " is " +
                          std::string(to_string(task.state)));
    const storage::FileRecord& file = task.files.front();
    const std::string* text = disk_.content(std::string(kRoot) + "/" + file.name);
    const auto read = text != nullptr && record_of(file.name, *text) == file
                          ? value_in(*text, "artifact")
                          : std::nullopt;
    if (!read) throw coordinator::DamagedArtifact(file.name, file.name + " is damaged");
    value = mix(value, *read);
  }
  std::vector<storage::FileRecord> files;
  for (const std::string& name : coordinator::kind_of(coordinator::Stage::kAssemble)
                                     .outputs(coordinator::TaskId::assemble(), token)) {
    disk_.before_step();
    const std::string text = file_text("student", value);
    disk_.put(std::string(kRoot) + "/" + storage::RunLayout::attempt_directory(token) +
                  name.substr(name.rfind('/')),
              text);
    files.push_back(record_of(name, text));
  }
  return files;
}

}  // namespace hedgerow::simulator
