#include "coordinator/status/status.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/terminal/control.hpp"
#include "coordinator/cli/terminal/screen.hpp"
#include "coordinator/cli/terminal/task_scores.hpp"
#include "storage/history/history_file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

storage::ExitCode run_status(const std::string& directory, Terminal& terminal) {
  const storage::RunLayout layout(directory);
  const RunStatus status = read_status(layout);
  storage::HistoryReader history(layout);
  history.read_what_it_can();
  for (const std::string& line : whole_view(status,
                                            terminal.answer_width(),
                                            kUnlimitedRows,
                                            &history.history(),
                                            /*draws_heat=*/false))
    terminal.print(line);
  if (const std::string verdict = control_verdict(status); !verdict.empty())
    terminal.print(verdict);
  for (const std::string& line : task_score_lines(status.task_scores, terminal.answer_width()))
    terminal.print(line);
  for (const std::string& line : task_verdicts(status.task_scores)) terminal.print(line);
  const nlohmann::json object = status;
  terminal.print_json(object);
  return storage::ExitCode::kOk;
}

}  // namespace

RunCommand declare_status(CLI::App& app) {
  const auto directory = std::make_shared<std::string>();
  add_run(app, *directory);
  return [directory](Terminal& terminal) { return run_status(run_or_here(*directory), terminal); };
}

}  // namespace hedgerow::coordinator::cli
