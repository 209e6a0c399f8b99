#include "coordinator/status/status.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/terminal/control.hpp"
#include "coordinator/cli/terminal/screen.hpp"

namespace hedgerow::coordinator::cli {
namespace {

storage::ExitCode run_status(const std::string& directory, Terminal& terminal) {
  const RunStatus status = read_status(storage::RunLayout(directory));
  for (const std::string& line : whole_view(status, terminal.answer_width())) terminal.print(line);
  if (const std::string verdict = control_verdict(status); !verdict.empty())
    terminal.print(verdict);
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
