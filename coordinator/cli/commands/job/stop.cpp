#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/run/stop_request.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/status/status.hpp"
#include "coordinator/wire/coordinator_file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using std::chrono::seconds;
using storage::ExitCode;

// A run that still makes its tokens can be stopped as one that has a coordinator.
bool is_at_work(const RunStatus& status) {
  return status.state == "running" || status.state == "preparing";
}

struct StopOptions {
  std::string run;
  int timeout_seconds = 120;
};

// Ends `orphans`, which the dead coordinator of `file` left behind on this host: workers, mpirun
// and srun alike take SIGUSR1 for the request to checkpoint and end. False: some are still there
// when the time is over.
bool stop_orphans(const wire::CoordinatorFile& file,
                  const std::vector<wire::ChildRecord>& orphans,
                  const StopOptions& options,
                  Terminal& terminal) {
  terminal.say("its coordinator (pid " + std::to_string(file.process.pid) + ") is gone; asking " +
               std::to_string(orphans.size()) + " of its processes to checkpoint and end");
  for (const wire::ChildRecord& orphan : orphans) ::kill(-orphan.process.pid, SIGUSR1);
  const InterruptScope interrupts;
  const auto begin = terminal.console().now();
  while (!wire::orphans_of(file).empty()) {
    if (is_interrupted()) return false;
    if (terminal.console().now() - begin > seconds(options.timeout_seconds)) return false;
    std::ignore = terminal.console().wait_for_key(std::chrono::milliseconds(200));
  }
  return true;
}

ExitCode run_stop(const StopOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  const auto answer = [&](const char* text, const std::string& state) {
    terminal.print(options.run + ": " + text);
    terminal.print_json({{"run", options.run}, {"state", state}});
    return ExitCode::kOk;
  };
  RunStatus status = read_status(layout);
  if (!is_at_work(status)) {
    const auto file = wire::read_coordinator_file(layout);
    const auto orphans = file ? wire::orphans_of(*file) : std::vector<wire::ChildRecord>();
    if (orphans.empty()) return answer("nothing runs here", status.state);
    if (!stop_orphans(*file, orphans, options, terminal)) return ExitCode::kInterrupted;
    return answer(("stopped; 'hedgerow run --run " + options.run + "' goes on").c_str(),
                  status.state);
  }
  request_stop(layout);
  const InterruptScope interrupts;
  const auto begin = terminal.console().now();
  while (is_at_work(status)) {
    if (is_interrupted()) return ExitCode::kInterrupted;
    if (terminal.console().now() - begin > seconds(options.timeout_seconds)) {
      throw storage::Error(storage::ErrorKind::kUnavailable,
                           "the process on " + status.host + " (pid " + std::to_string(status.pid) +
                               ") did not stop within " + std::to_string(options.timeout_seconds) +
                               " s; the request stays in " + layout.stop_file().string());
    }
    terminal.status(status.state == "preparing"
                        ? "waiting for the tokenizer to end"
                        : "waiting for checkpoints: " + std::to_string(status.workers.size()) +
                              " workers");
    std::ignore = terminal.console().wait_for_key(std::chrono::milliseconds(200));
    status = read_status(layout);
  }
  withdraw_stop(layout);
  return answer(("stopped; 'hedgerow run --run " + options.run + "' goes on").c_str(),
                status.state);
}

}  // namespace

RunCommand declare_stop(CLI::App& app) {
  const auto options = std::make_shared<StopOptions>();
  add_run(app, options->run);
  app.add_option("--timeout", options->timeout_seconds, "seconds to wait for the checkpoints")
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 86400).description(""))
      ->capture_default_str();
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_stop(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
