// scale_bench [--workers 10000] [--tasks 100000] [--seconds 60] [--keys]: one production
// coordinator, that many workers with a connection each, in processes of this program. Prints one
// JSON object: what the coordinator took of a core and of memory while they worked, how long a
// request for a task waited, and how long it took after a SIGKILL until the next coordinator
// granted again.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "coordinator/wire/coordinator_file.hpp"
#include "storage/files/file.hpp"
#include "tests/bench/scale/scale_fleet.hpp"
#include "tests/bench/scale/scale_run.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::bench {
namespace {

using nlohmann::json;
using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kWorkersPerProcess = 4000;  // two descriptors each
constexpr seconds kRamp{30}, kSettle{10}, kAfterRestart{20};

struct Options {
  int workers = 10'000, tasks = 100'000, seconds = 60;
  double task_seconds = 100.0;
  bool has_keys = false;
  std::string coordinate;
};

Time now() { return std::chrono::steady_clock::now(); }

void allow_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// A process of ours that does `work` and ends.
template <typename Work>
pid_t in_child(const Work& work) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child > 0) return child;
  int code = 0;
  try {
    work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scale_bench: %s\n", error.what());
    code = 1;
  }
  _exit(code);
}

// Starts anew, so that its memory is its own.
pid_t start_coordinator(const storage::RunLayout& layout) {
  return in_child([&] {
    execl("/proc/self/exe", "scale_bench", "--coordinate", layout.root().c_str(), nullptr);
    throw std::runtime_error("exec failed");
  });
}

void wait_for(pid_t child, const char* what) {
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) throw std::runtime_error(std::string(what) + " failed");
}

// User and system time of a process so far.
double processor_seconds(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double peak_megabytes(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::atof(line.c_str() + 6) * 1024 / 1e6;  // KiB
  }
  return 0.0;
}

// Seconds until the coordinator of a term after this one has published its address.
double seconds_until_term(const storage::RunLayout& layout, std::uint64_t term, Time begin) {
  while (true) {
    const auto file = wire::read_coordinator_file(layout);
    if (file && file->term > term) return duration<double>(now() - begin).count();
    if (now() - begin > seconds(120)) throw std::runtime_error("no coordinator came");
    std::this_thread::sleep_for(milliseconds(5));
  }
}

std::uint64_t term_of(const storage::RunLayout& layout) {
  const auto file = wire::read_coordinator_file(layout);
  return file ? file->term : 0;
}

json to_json(const FleetReport& report) {
  return {{"request_ms", report.request_milliseconds},
          {"messages", report.num_heartbeats},
          {"working", report.num_working},
          {"lost", report.num_lost},
          {"welcomed", report.num_welcomed},
          {"first_grant_s", report.first_grant_seconds},
          {"last_welcome_s", report.last_welcome_seconds}};
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return -1.0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

// Fleets' reports as one.
json together(const std::vector<std::filesystem::path>& files) {
  std::vector<double> waited;
  json sums = {{"messages", 0}, {"working", 0}, {"lost", 0}, {"welcomed", 0}};
  double first_grant = -1.0, last_welcome = -1.0;
  for (const auto& file : files) {
    const json report = json::parse(storage::read_text(file, 1U << 28));
    for (const double ms : report["request_ms"]) waited.push_back(ms);
    for (auto& [key, sum] : sums.items())
      sum = sum.get<std::int64_t>() + report[key].get<std::int64_t>();
    const double grant = report["first_grant_s"];
    if (grant >= 0 && (first_grant < 0 || grant < first_grant)) first_grant = grant;
    last_welcome = std::max(last_welcome, report["last_welcome_s"].get<double>());
  }
  return {{"requests", waited.size()},
          {"request_p50_ms", quantile(waited, 0.5)},
          {"request_p99_ms", quantile(waited, 0.99)},
          {"request_max_ms", quantile(waited, 1.0)},
          {"messages", sums["messages"]},
          {"leases_before_restart", sums["working"]},
          {"leases_lost", sums["lost"]},
          {"workers_welcomed_again", sums["welcomed"]},
          {"restart_first_grant_s", first_grant},
          {"restart_last_welcome_s", last_welcome}};
}

json measure(const Options& options) {
  const tests::TemporaryDirectory directory;
  const storage::RunLayout layout(directory.path() / "run");
  const ScaleRun run{
      .num_tasks = options.tasks, .num_done = options.tasks / 10 * 7, .has_keys = options.has_keys};
  wait_for(in_child([&] { make_scale_run(layout, run); }), "making the run");
  const std::uint64_t first_term = term_of(layout);
  const Time start = now();
  pid_t coordinator = start_coordinator(layout);
  const double cold_start = seconds_until_term(layout, first_term, start);

  FleetOptions fleet{.task_seconds = options.task_seconds};
  fleet.begin = now();
  fleet.ramp_end = fleet.begin + kRamp;
  fleet.measure_from = fleet.ramp_end + kSettle;
  fleet.restart_at = fleet.measure_from + seconds(options.seconds);
  fleet.end = fleet.restart_at + kAfterRestart;
  std::vector<pid_t> fleets;
  std::vector<std::filesystem::path> reports;
  for (int first = 0; first < options.workers; first += kWorkersPerProcess) {
    fleet.first = first;
    fleet.count = std::min(kWorkersPerProcess, options.workers - first);
    reports.push_back(directory.path() / ("fleet-" + std::to_string(first) + ".json"));
    fleets.push_back(in_child([&] {
      storage::write_atomically(reports.back(), to_json(run_fleet(layout, fleet)).dump());
    }));
  }
  std::this_thread::sleep_until(fleet.measure_from);
  const double before = processor_seconds(coordinator);
  std::this_thread::sleep_until(fleet.restart_at);
  const double used = processor_seconds(coordinator) - before;
  const double memory = peak_megabytes(coordinator);
  const std::uint64_t term = term_of(layout);
  kill(coordinator, SIGKILL);
  waitpid(coordinator, nullptr, 0);
  coordinator = start_coordinator(layout);
  const double restart = seconds_until_term(layout, term, fleet.restart_at);
  for (const pid_t each : fleets) wait_for(each, "a fleet");
  json result = together(reports);
  result["workers"] = options.workers;
  result["tasks"] = options.tasks;
  result["keys"] = options.has_keys;
  result["seconds"] = options.seconds;
  result["coordinator_core_percent"] = 100.0 * used / options.seconds;
  result["coordinator_peak_mb"] = memory;
  result["coordinator_peak_after_restart_mb"] = peak_megabytes(coordinator);
  result["start_s"] = cold_start;
  result["restart_s"] = restart;
  kill(coordinator, SIGKILL);
  waitpid(coordinator, nullptr, 0);
  return result;
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures the coordinator with many workers over real sockets");
  app.add_option("--workers", options.workers);
  app.add_option("--tasks", options.tasks);
  app.add_option("--seconds", options.seconds);
  app.add_option("--task-seconds", options.task_seconds, "how long a worker waits over a task");
  app.add_flag("--keys", options.has_keys, "with CURVE");
  app.add_option("--coordinate", options.coordinate, "be the coordinator of this run directory");
  CLI11_PARSE(app, argc, argv);
  allow_descriptors();
  if (!options.coordinate.empty()) coordinate(storage::RunLayout(options.coordinate));
  std::printf("%s\n", measure(options).dump().c_str());
  return 0;
}

}  // namespace
}  // namespace hedgerow::bench

int main(int argc, char** argv) { return hedgerow::bench::main(argc, argv); }
