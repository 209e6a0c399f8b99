#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/host/run_ownership.hpp"
#include "coordinator/net/key_maker.hpp"
#include "coordinator/wire/run_keys.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;
using storage::RunLayout;

struct KeygenOptions {
  std::string run;
  std::vector<std::string> workers;
  bool rotate = false;
};

KeyRequest request_of(const KeygenOptions& options, const RunLayout& layout) {
  KeyRequest request{.workers = options.workers, .rotate = options.rotate};
  request.of_coordinator =
      options.workers.empty() || !fs::exists(wire::secret_key_file(layout, "coordinator"));
  if (request.workers.empty() && options.rotate) request.workers = worker_pairs(layout);
  if (request.workers.empty()) request.workers = {wire::kDefaultWorkerKey};
  return request;
}

// What a living coordinator has to hear; it keeps its own pair as long as it lives.
void say_what_follows(const KeygenOptions& options, const RunLayout& layout, Terminal& terminal) {
  const auto held = wire::read_coordinator_file(layout);
  const bool lives = held && !held->public_key.empty() &&
                     (held->host != wire::this_host() || wire::is_alive(held->process));
  if (!lives) {
    terminal.say("'hedgerow run --run " + options.run +
                 "' uses them from now on; workers.bind in its recipe may name an address that "
                 "other hosts reach");
    return;
  }
  terminal.say("a running coordinator reads keys/allowed again when it gets SIGHUP: 'kill -HUP " +
               std::to_string(held->process.pid) + "' on " + held->host);
}

ExitCode run_keygen(const KeygenOptions& options, Terminal& terminal) {
  const RunLayout layout(options.run);
  const KeyRequest request = request_of(options, layout);
  if (request.of_coordinator) {
    const auto say = [&terminal](const std::string& text) { terminal.say(text); };
    std::ignore = refuse_if_held(layout, {say});
  }
  const KeyReport report = make_keys(layout, request);
  const std::string directory = layout.keys_directory().string();
  require(!report.written.empty(),
          directory +
              " has these keys already; add a pair with --worker NAME, or put new ones in "
              "their place with --rotate");
  std::string names;
  for (const std::string& name : report.written) names += (names.empty() ? "" : ", ") + name;
  terminal.print(directory + ": wrote " + names);
  for (const auto& [pair, key] : report.public_keys)
    terminal.print("public key of " + pair + ": " + key);
  terminal.print_json({{"run", options.run},
                       {"directory", directory},
                       {"written", report.written},
                       {"public_keys", report.public_keys}});
  say_what_follows(options, layout, terminal);
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_keygen(CLI::App& app) {
  const auto options = std::make_shared<KeygenOptions>();
  add_run(app, options->run);
  app.add_option("--worker",
                 options->workers,
                 "a pair of that name for some of the workers, and nothing else; may be repeated")
      ->type_name("NAME");
  app.add_flag("--rotate",
               options->rotate,
               "new keys in place of those that are there, which are let in no longer");
  return [options](Terminal& terminal) {
    require(!options->run.empty() || fs::exists("run.toml"),
            "missing: --run DIR (the run directory, which may be yet to come)");
    if (options->run.empty()) options->run = ".";
    return run_keygen(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
