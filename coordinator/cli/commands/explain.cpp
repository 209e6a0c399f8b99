#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/format.hpp"
#include "coordinator/status.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

struct ExplainOptions {
  std::string run;
  int block = -1;
};

std::string state_text(const TaskStatus& task) {
  std::string text = task.id + ": " + task.state;
  if (!task.worker.empty() && task.state == "running") text += " on " + task.worker;
  if (task.attempts > 1) text += ", attempt " + std::to_string(task.attempts);
  if (!task.reason.empty()) text += "; " + task.reason;
  return text;
}

ExitCode run_explain(const ExplainOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  const RunStatus status = read_status(layout);
  require(options.block < 0 || status.num_blocks > 0,
          options.run + " has not begun, so it has no blocks yet; 'hedgerow run --run " +
              options.run + "' begins it");
  require(options.block >= -1 && options.block < status.num_blocks,
          "block " + std::to_string(options.block) + " does not exist: this run has blocks 0 to " +
              std::to_string(status.num_blocks - 1));
  nlohmann::json tasks = nlohmann::json::array(), events = nlohmann::json::array();
  for (const TaskStatus& task : status.tasks) {
    if (options.block >= 0 && task.block != options.block) continue;
    terminal.print(wrap(one_line(state_text(task)), terminal.width(), 4));
    tasks.push_back({{"id", task.id},
                     {"state", task.state},
                     {"reason", task.reason},
                     {"attempts", task.attempts}});
  }
  terminal.print("");
  for (const ExplainedEvent& event : explain(layout, options.block)) {
    terminal.print(
        wrap(one_line(event.at + "  " + event.subject + ": " + event.text), terminal.width(), 4));
    events.push_back({{"term", event.term},
                      {"seq", event.seq},
                      {"at", event.at},
                      {"subject", event.subject},
                      {"text", event.text}});
  }
  terminal.print_json({{"block", options.block}, {"tasks", tasks}, {"events", events}});
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_explain(CLI::App& app) {
  const auto options = std::make_shared<ExplainOptions>();
  app.add_option("--block,block", options->block, "the block; without it: the whole run")
      ->type_name("N");
  add_run(app, options->run);
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_explain(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
