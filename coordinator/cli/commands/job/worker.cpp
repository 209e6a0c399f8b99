#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

struct WorkerOptions {
  std::string run, connect, key;
  int threads = 0;
  int wait_seconds = 0;
  bool stays = false;
};

constexpr std::chrono::seconds kLookForOpeningEvery{2};
// A step in hand, its checkpoint and the coordinator's answer; then a worker is killed.
constexpr std::chrono::seconds kWorkerStopTimeout{60};

ExitCode say_over(const WorkerOptions& options, Terminal& terminal) {
  terminal.say(options.run + " is over: no worker is wanted");
  terminal.print_json({{"run", options.run}, {"endpoint", nullptr}});
  return ExitCode::kOk;
}

// Until a coordinator has room for workers: then nothing, and its endpoint. A code to end with when
// the run is over or a signal ends the wait. Within an InterruptScope. Throws kUnavailable when the
// time is over.
std::optional<ExitCode> wait_for_opening(const WorkerOptions& options,
                                         const storage::RunLayout& layout,
                                         std::string& endpoint,
                                         Terminal& terminal) {
  const auto end = terminal.console().now() + std::chrono::seconds(options.wait_seconds);
  for (bool is_first = true;; is_first = false) {
    const Opening opening = find_opening(layout);
    endpoint = opening.endpoint;
    if (is_interrupted()) return ExitCode::kInterrupted;
    if (opening.kind == Opening::Kind::kWelcome) return std::nullopt;
    if (opening.kind == Opening::Kind::kOver) return say_over(options, terminal);
    if (terminal.console().now() >= end) {
      if (opening.kind == Opening::Kind::kBusy) {
        throw storage::Error(storage::ErrorKind::kUnavailable,
                             "the coordinator of " + options.run +
                                 " had no room for a worker for " +
                                 std::to_string(options.wait_seconds) +
                                 " s, as during a long finetune stage; wait longer with --wait");
      }
      throw storage::Error(storage::ErrorKind::kUnavailable,
                           "no coordinator of " + options.run + " had room for a worker within " +
                               std::to_string(options.wait_seconds) + " s; 'hedgerow run --run " +
                               options.run + "' starts one");
    }
    if (is_first) terminal.say("waiting for a coordinator of " + options.run);
    std::ignore = terminal.console().wait_for_key(kLookForOpeningEvery);
  }
}

std::vector<std::string> serve_arguments(const WorkerOptions& options,
                                         const storage::RunLayout& layout,
                                         const std::string& endpoint,
                                         Terminal& terminal) {
  const int threads = options.threads > 0 ? options.threads : recipe_of_run(layout).workers.threads;
  std::vector<std::string> arguments{
      worker_binary(terminal.console()), "serve", "--run", options.run, "--connect", endpoint};
  if (!options.key.empty()) arguments.insert(arguments.end(), {"--key", options.key});
  if (threads > 0) arguments.insert(arguments.end(), {"--threads", std::to_string(threads)});
  return arguments;
}

void say_joining(const WorkerOptions& options, const std::string& endpoint, Terminal& terminal) {
  terminal.say("joining " + endpoint);
  terminal.print_json({{"run", options.run}, {"endpoint", endpoint}});
}

// Joins whenever there is room, until the run is over. A process of its own for each time, so that
// nothing of it is left in memory and on the GPU while the finetune stage has the machine.
ExitCode stay(const WorkerOptions& options, const storage::RunLayout& layout, Terminal& terminal) {
  const InterruptScope interrupts;
  for (;;) {
    std::string endpoint;
    if (const auto end = wait_for_opening(options, layout, endpoint, terminal)) return *end;
    say_joining(options, endpoint, terminal);
    const ChildResult worker =
        run_child({.arguments = serve_arguments(options, layout, endpoint, terminal),
                   .timeout = kWorkerStopTimeout,
                   .speaks_itself = true},
                  terminal,
                  [](std::string_view /*line*/) {});
    if (worker.was_interrupted) return ExitCode::kInterrupted;
    if (worker.exit_code > 128) {
      const int signal = worker.exit_code - 128;
      throw storage::Error(storage::ErrorKind::kUnavailable,
                           "the worker of " + options.run + " was killed by signal " +
                               std::to_string(signal) +
                               (signal == SIGKILL ? ", as the kernel does where memory ends" : "") +
                               "; start it again with the same command");
    }
    const auto code = static_cast<ExitCode>(worker.exit_code);
    if (code != ExitCode::kInterrupted) return code;  // it has said why
  }
}

ExitCode run_worker(const WorkerOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  std::string endpoint = options.connect;
  require(endpoint.empty() || (endpoint.starts_with("tcp://") && wire::port_of(endpoint) > 0),
          "--connect " + endpoint + ": no address of a coordinator; expected tcp://HOST:PORT");
  require(!options.stays || (options.wait_seconds > 0 && endpoint.empty()),
          "--stay needs --wait SECONDS, and goes without --connect: it looks for the coordinator");
  if (options.stays) return stay(options, layout, terminal);
  if (options.wait_seconds > 0 && endpoint.empty()) {
    const InterruptScope interrupts;
    if (const auto end = wait_for_opening(options, layout, endpoint, terminal)) return *end;
  }
  require_run(layout);
  if (endpoint.empty()) {
    const RunStatus status = read_status(layout);
    require(!status.endpoint.empty(),
            "no coordinator of " + options.run + " is running; start it with 'hedgerow run --run " +
                options.run + "', name it with --connect tcp://HOST:PORT, or --wait for it");
    endpoint = status.endpoint;
  }
  const std::vector<std::string> arguments = serve_arguments(options, layout, endpoint, terminal);
  say_joining(options, endpoint, terminal);
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
  app.add_flag("--stay",
               options->stays,
               "wait again whenever the run had no room for a while, as during its finetune stage");
  return [options](Terminal& terminal) {
    if (options->wait_seconds == 0) options->run = run_or_here(options->run);
    require(!options->run.empty(), "missing: --run DIR (the run directory)");
    return run_worker(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
