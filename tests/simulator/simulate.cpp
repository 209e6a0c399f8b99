// simulate: many seeds of the coordinator's world, on all cores.
//
//   simulate --seeds N [--first S] [--workers W] [--threads T] [--json FILE]
//            [--min-events N] [--verbose] [--max-holes N]
//
// Every seed is a run of its own: `simulate --first SEED --seeds 1` repeats it exactly. Prints what
// the seeds have been through and how fast. Exit codes: 0 every promise held, 1 one was broken (the
// seed is named), 2 usage.

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

#include "tests/simulator/world.hpp"

namespace {

using namespace hedgerow::simulator;

struct Options {
  std::uint64_t seeds = 100, all_seeds = 0, release_seeds = 0, first = 1, min_events = 0;
  int workers = 0;
  unsigned threads = std::thread::hardware_concurrency();
  std::string json;
  std::size_t max_holes = ~std::size_t{0};
  bool verbose = false;
};

struct Outcome {
  Coverage coverage;
  std::vector<std::string> broken;
  std::uint64_t fewest_events = ~std::uint64_t{0}, seed_of_fewest = 0;
  double cpu_seconds = 0.0;
};

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Outcome simulate(const Options& options) {
  Outcome outcome;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    const double begin = thread_seconds();
    Coverage own;
    while (true) {
      const std::uint64_t index = next++;
      if (index >= options.seeds) break;
      const std::uint64_t seed = options.first + index;
      World world(options.workers > 0 ? large_scenario(seed, options.workers)
                                      : small_scenario(seed));
      if (options.verbose) world.log_to(stdout);
      std::string broken;
      try {
        world.run();
      } catch (const std::exception& error) {
        broken = "seed " + std::to_string(seed) + ": " + error.what();
      }
      own.add(world.coverage());
      const std::lock_guard lock(mutex);
      if (world.coverage().events < outcome.fewest_events) {
        outcome.fewest_events = world.coverage().events;
        outcome.seed_of_fewest = seed;
      }
      if (broken.empty()) continue;
      outcome.broken.push_back(broken);
      std::fprintf(stderr, "%s\n", broken.c_str());
    }
    const std::lock_guard lock(mutex);
    outcome.coverage.add(own);
    outcome.cpu_seconds += thread_seconds() - begin;
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < options.threads; ++i) threads.emplace_back(work);
  threads.clear();
  return outcome;
}

int report(const Options& options, const Outcome& outcome, double wall_seconds) {
  const double per_minute =
      60.0 * static_cast<double>(outcome.coverage.events) / outcome.cpu_seconds;
  const std::vector<std::string> holes = outcome.coverage.holes();
  std::printf(
      "%s\n%llu seeds, %llu events (fewest %llu), %llu records, %.0f virtual hours in %.1f s: %.1f "
      "million events a minute and core\n",
      to_text(outcome.coverage).c_str(),
      static_cast<unsigned long long>(outcome.coverage.runs),
      static_cast<unsigned long long>(outcome.coverage.events),
      static_cast<unsigned long long>(outcome.fewest_events),
      static_cast<unsigned long long>(outcome.coverage.records),
      outcome.coverage.virtual_hours,
      wall_seconds,
      per_minute / 1e6);
  for (const std::string& hole : holes) std::printf("not covered: %s\n", hole.c_str());
  std::printf("%zu broken\n", outcome.broken.size());
  if (!options.json.empty()) {
    nlohmann::json json = to_json(outcome.coverage);
    json["seeds"] = options.seeds;
    json["first_seed"] = options.first;
    json["workers"] = options.workers;
    json["fewest_events"] = outcome.fewest_events;
    json["events_per_minute_and_core"] = per_minute;
    json["broken"] = outcome.broken;
    std::ofstream(options.json) << json.dump(2) << "\n";
  }
  const bool is_long_enough = outcome.fewest_events >= options.min_events;
  if (!is_long_enough)
    std::printf("seed %llu has fewer than %llu events\n",
                static_cast<unsigned long long>(outcome.seed_of_fewest),
                static_cast<unsigned long long>(options.min_events));
  return outcome.broken.empty() && holes.size() <= options.max_holes && is_long_enough ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Simulates the coordinator and its workers");
  app.add_option("--seeds", options.seeds, "how many")->capture_default_str();
  app.add_option("--all-seeds",
                 options.all_seeds,
                 "how many where HEDGEROW_TEST_ALL is set (tests/run --all)");
  app.add_option("--release-seeds",
                 options.release_seeds,
                 "how many where HEDGEROW_TEST_RELEASE is set (tests/run --release)");
  app.add_option("--first", options.first, "the first seed")->capture_default_str();
  app.add_option("--workers", options.workers, "large runs of so many; 0: small ones of up to 8");
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--json", options.json, "write the figures there");
  app.add_option("--min-events", options.min_events, "fail if a seed has fewer");
  app.add_flag("--verbose", options.verbose, "say what happens, for a single seed");
  app.add_option("--max-holes", options.max_holes, "fail if more states and faults were not met");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.release_seeds > 0 && std::getenv("HEDGEROW_TEST_RELEASE") != nullptr)
    options.seeds = options.release_seeds;
  else if (options.all_seeds > 0 && std::getenv("HEDGEROW_TEST_ALL") != nullptr)
    options.seeds = options.all_seeds;
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = simulate(options);
  return report(options,
                outcome,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}
