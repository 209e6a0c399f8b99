#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/terminal/explanation.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/status/status.hpp"
#include "storage/history/history_file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

struct ExplainOptions {
  std::string run;
  int block = -1;
  bool all = false;
};

ExitCode run_explain(const ExplainOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  const RunStatus status = read_status(layout);
  require(options.block < 0 || status.num_blocks > 0,
          options.run + " has not begun, so it has no blocks yet; 'hedgerow run --run " +
              options.run + "' begins it");
  require(options.block >= -1 && options.block < status.num_blocks,
          "block " + std::to_string(options.block) + " does not exist: this run has blocks 0 to " +
              std::to_string(status.num_blocks - 1));
  const int width = terminal.answer_width();
  storage::HistoryReader history(layout);
  history.read_what_it_can();
  for (const std::string& line : options.block >= 0
                                     ? explain_block(status, options.block, &history.history())
                                     : explain_run(status, &history.history()))
    terminal.print(wrap(line, width, 4));
  if (options.block < 0) {
    const std::vector<std::string> planned = plan_lines(status, width);
    if (!planned.empty()) terminal.print("");
    for (const std::string& line : planned) terminal.print(line);
  }
  nlohmann::json tasks = nlohmann::json::array(), events = nlohmann::json::array();
  for (const TaskStatus& task : status.tasks) {
    if (options.block >= 0 && task.block != options.block) continue;
    tasks.push_back({{"id", task.id},
                     {"state", task.state},
                     {"reason", task.reason},
                     {"attempts", task.attempts},
                     {"peak_memory", task.peak_memory()}});
  }
  terminal.print("");
  bool is_quiet = true;
  for (const ExplainedEvent& event : explain(layout, options.block)) {
    // JSON is for programs, which choose for themselves.
    events.push_back({{"term", event.term},
                      {"seq", event.seq},
                      {"at", event.at},
                      {"subject", event.subject},
                      {"type", event.type},
                      {"text", event.text}});
    if (options.block < 0 && !options.all && !is_trouble(event)) continue;
    is_quiet = false;
    terminal.print(wrap(one_line(event.at + "  " + event.subject + ": " + event.text), width, 4));
  }
  if (is_quiet)
    terminal.print("nothing failed, was given back or got lost" +
                   std::string(options.block < 0 ? "; --all shows every event" : ""));
  terminal.print_json({{"block", options.block}, {"tasks", tasks}, {"events", events}});
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_explain(CLI::App& app) {
  const auto options = std::make_shared<ExplainOptions>();
  app.add_option("--block,block", options->block, "the block; without it: the whole run")
      ->type_name("N");
  app.add_flag("--all", options->all, "every event of the run, not only what went wrong");
  add_run(app, options->run);
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_explain(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
