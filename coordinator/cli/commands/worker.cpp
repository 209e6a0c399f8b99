#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/child.hpp"
#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs.hpp"
#include "coordinator/status.hpp"
#include "storage/recipe.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

struct WorkerOptions {
  std::string run, connect, key;
  int threads = 0;
};

ExitCode run_worker(const WorkerOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  require_run(layout);
  std::string endpoint = options.connect;
  if (endpoint.empty()) {
    const RunStatus status = read_status(layout);
    require(!status.endpoint.empty(),
            "no coordinator of " + options.run + " is running; start it with 'hedgerow run --run " +
                options.run + "', or name it with --connect tcp://HOST:PORT");
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
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_worker(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
