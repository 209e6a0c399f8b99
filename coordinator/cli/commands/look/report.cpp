#include "coordinator/web/report.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

struct ReportOptions {
  std::string run, out;
};

storage::ExitCode run_report(const ReportOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  const RunStatus status = read_status(layout);
  storage::HistoryReader history(layout);
  history.read_all();
  const std::filesystem::path out =
      options.out.empty() ? layout.root() / "report.html" : std::filesystem::path(options.out);
  require(!std::filesystem::is_directory(out),
          "--out " + out.string() + " is a directory; name a file in it");
  const std::string recipe =
      std::filesystem::exists(layout.recipe()) ? storage::read_text(layout.recipe()) : "";
  storage::write_atomically(out,
                            report_html({.status = status,
                                         .history = history.history(),
                                         .recipe = recipe,
                                         .provenance = provenance_of(layout)}));
  terminal.print("report: " + out.string());
  if (history.history().series.empty())
    terminal.say("the run has no history, so the report has no curves");
  terminal.print_json({{"report", out.string()}});
  return storage::ExitCode::kOk;
}

}  // namespace

RunCommand declare_report(CLI::App& app) {
  const auto options = std::make_shared<ReportOptions>();
  add_run(app, options->run);
  app.add_option("--out", options->out, "the file; report.html in the run's directory otherwise")
      ->type_name("FILE");
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_report(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
