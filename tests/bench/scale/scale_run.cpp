#include "tests/bench/scale/scale_run.hpp"

#include <fmt/format.h>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/net/key_maker.hpp"
#include "coordinator/net/router_socket.hpp"
#include "coordinator/serve/coordinator.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::bench {
namespace {

using namespace coordinator;

constexpr int kBoundaries = 10;
constexpr int kEventsPerCommit = 10'000;
constexpr const char* kText = "a shard of no tensors\n";

// One layer a block, one shard a capture, and a transfer at the end of each boundary.
Geometry geometry_of(const ScaleRun& run) {
  Geometry geometry;
  geometry.num_layers = kBoundaries + 1;
  geometry.num_shards = run.num_tasks / kBoundaries;
  geometry.sequences_per_shard = 4;
  geometry.seed = 1;
  return geometry;
}

DispatcherConfig dispatcher_config(const storage::RunLayout& layout,
                                   const storage::ReplayResult& replayed) {
  DispatcherConfig config;
  config.version = "1";
  config.token_floor = token_floor(layout, replayed);
  config.log = [](const std::string& line) { fmt::print(stderr, "coordinator: {}\n", line); };
  return config;
}

class Nobody final : public RunObserver {
 public:
  void on_status(const RunStatus& /*status*/) override {}
};

}  // namespace

storage::FileRecord write_shard(const storage::RunLayout& layout,
                                std::uint64_t token,
                                const std::string& name) {
  const auto path = layout.root() / storage::RunLayout::attempt_directory(token) /
                    std::filesystem::path(name).filename();
  std::filesystem::create_directories(path.parent_path());
  storage::write_atomically(path, kText);
  return {name, std::string_view(kText).size(), storage::hash_file(path)};
}

std::string worker_name(int number) {
  return fmt::format("gpu-node-{:04}-{:08x}", number / 8, number);
}

nlohmann::json capture_result() {
  return {{"shards", 1},
          {"tokens", 2048},
          {"seconds", 12.345678901234567},
          {"tokens_per_second", 165.88800000000001},
          {"seconds_waited_on_data", 0.012345678901234567},
          {"peak_memory", {{"host_bytes", 17'179'869'184}, {"device_bytes", 68'719'476'736}}}};
}

void make_scale_run(const storage::RunLayout& layout, const ScaleRun& run) {
  std::filesystem::create_directories(layout.root());
  storage::write_atomically(layout.recipe(), "# no recipe: nobody computes here\n");
  if (run.has_keys) static_cast<void>(make_keys(layout, {.workers = {"worker"}}));
  std::filesystem::create_directories(layout.logs());
  const SteadyClock clock;
  const storage::ReplayResult nothing;
  Term term = open_term(layout, nothing, {}, clock);
  Dispatcher dispatcher(layout,
                        std::move(term.folded.state),
                        std::move(term.journal),
                        clock,
                        dispatcher_config(layout, nothing));
  const Geometry geometry = geometry_of(run);
  dispatcher.record(RunStarted{geometry, "bench"});
  const storage::Hash128 hash = write_shard(layout, 1, "any").root_hash;
  for (int i = 0; i < run.num_done; ++i) {
    const TaskId id = TaskId::capture(i / geometry.num_shards, i % geometry.num_shards);
    const auto token = static_cast<std::uint64_t>(i) + 2;
    dispatcher.record(Granted{id, token, worker_name(i % 10'000), 1, kDevice});
    const storage::FileRecord file{
        shard_name(id, id.piece, token), std::string_view(kText).size(), hash};
    dispatcher.record(ShardCommitted{token, id.piece, file, id});
    dispatcher.record(TaskDone{token, {}, capture_result(), id});
    if (i % kEventsPerCommit == 0) static_cast<void>(dispatcher.flush());
  }
  static_cast<void>(dispatcher.flush());
}

void coordinate(const storage::RunLayout& layout) {
  const auto previous = wire::read_coordinator_file(layout);
  storage::ReplayResult replayed = replay_if_any(layout);
  DispatcherConfig dispatcher = dispatcher_config(layout, replayed);
  const SteadyClock clock;
  Term term = open_term(layout, replayed, fold(replayed), clock);
  release(std::move(replayed));
  RouterSocket socket({.preferred_port = previous ? wire::port_of(previous->endpoint) : 0,
                       .keys = wire::read_coordinator_keys(layout)});
  AllowedKeysReloader allowed_keys_reloader(layout, socket, nullptr);
  Nobody observer;
  Coordinator coordinator(
      {.layout = layout,
       .dispatcher = std::move(dispatcher),
       .launcher = {.worker_binary = "", .run_directory = layout.root(), .logs = layout.logs()}},
      {.mailbox = socket,
       .clock = clock,
       .assemble = [](const State&, std::uint64_t) { return std::vector<storage::FileRecord>(); },
       .public_key = socket.public_key(),
       .allowed_keys_news = [&] { return allowed_keys_reloader.look(clock.now()); }},
      std::move(term),
      previous,
      &observer);
  static_cast<void>(coordinator.run());
  std::exit(0);
}

}  // namespace hedgerow::bench
