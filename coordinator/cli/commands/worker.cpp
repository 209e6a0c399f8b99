#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "coordinator/cli/child.hpp"
#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/interrupt.hpp"
#include "coordinator/cli/programs.hpp"
#include "coordinator/status.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/recipe.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

struct WorkerOptions {
  std::string run, connect, key;
  int threads = 0;
  int wait_seconds = 0;
};

constexpr std::chrono::seconds kLookEvery{2};

enum class Waited { kWelcome, kOver, kInterrupted };

// Until a coordinator has room for workers, or the run is over. Throws kUnavailable when the time
// is.
Waited wait_for_opening(const WorkerOptions& options,
                        const storage::RunLayout& layout,
                        std::string& endpoint,
                        Terminal& terminal) {
  const InterruptScope interrupts;
  const auto end = terminal.console().now() + std::chrono::seconds(options.wait_seconds);
  for (bool is_first = true;; is_first = false) {
    const Opening opening = find_opening(layout);
    endpoint = opening.endpoint;
    if (is_interrupted()) return Waited::kInterrupted;
    if (opening.kind == Opening::Kind::kWelcome) return Waited::kWelcome;
    if (opening.kind == Opening::Kind::kOver) return Waited::kOver;
    if (terminal.console().now() >= end) {
      throw storage::Error(storage::ErrorKind::kUnavailable,
                           "no coordinator of " + options.run + " had room for a worker within " +
                               std::to_string(options.wait_seconds) + " s; 'hedgerow run --run " +
                               options.run + "' starts one");
    }
    if (is_first) terminal.say("waiting for a coordinator of " + options.run);
    std::ignore = terminal.console().wait_for_key(kLookEvery);
  }
}

ExitCode run_worker(const WorkerOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  std::string endpoint = options.connect;
  require(endpoint.empty() || (endpoint.starts_with("tcp://") && wire::port_of(endpoint) > 0),
          "--connect " + endpoint + ": no address of a coordinator; expected tcp://HOST:PORT");
  if (options.wait_seconds > 0 && endpoint.empty()) {
    switch (wait_for_opening(options, layout, endpoint, terminal)) {
      case Waited::kInterrupted:
        return ExitCode::kInterrupted;
      case Waited::kOver:
        terminal.say(options.run + " is over: no worker is wanted");
        terminal.print_json({{"run", options.run}, {"endpoint", nullptr}});
        return ExitCode::kOk;
      case Waited::kWelcome:
        break;
    }
  }
  require_run(layout);
  if (endpoint.empty()) {
    const RunStatus status = read_status(layout);
    require(!status.endpoint.empty(),
            "no coordinator of " + options.run + " is running; start it with 'hedgerow run --run " +
                options.run + "', name it with --connect tcp://HOST:PORT, or --wait for it");
    endpoint = status.endpoint;
  }
  const int threads = options.threads > 0 ? options.threads
                                          : storage::Recipe::load(layout.recipe()).workers.threads;
  std::vector<std::string> arguments{
      worker_binary(terminal.console()), "serve", "--run", options.run, "--connect", endpoint};
  if (!options.key.empty()) arguments.insert(arguments.end(), {"--key", options.key});
  if (threads > 0) arguments.insert(arguments.end(), {"--threads", std::to_string(threads)});
  terminal.say("joining " + endpoint);
  terminal.print_json({{"run", options.run}, {"endpoint", endpoint}});
  become(arguments);
}

}  // namespace

RunCommand declare_worker(CLI::App& app) {
  const auto options = std::make_shared<WorkerOptions>();
  add_run(app, options->run);
  app.add_option(
         "--connect", options->connect, "the coordinator, when the run directory does not tell")
      ->type_name("ADDRESS");
  app.add_option("--threads", options->threads, "in place of the recipe's")
      ->type_name("N")
      ->check(CLI::Range(1, 4096).description(""));
  app.add_option("--key", options->key, "the key pair to use, of 'keygen --worker NAME'")
      ->type_name("NAME");
  app.add_option(
         "--wait",
         options->wait_seconds,
         "how long to wait for a coordinator that has work; also for one that is yet to begin "
         "the run")
      ->type_name("SECONDS")
      ->check(CLI::Range(0, 31536000).description(""));
  return [options](Terminal& terminal) {
    if (options->wait_seconds == 0) options->run = run_or_here(options->run);
    require(!options->run.empty(), "missing: --run DIR (the run directory)");
    return run_worker(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
