#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/run/inspection.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/state/fold.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;

struct CleanOptions {
  std::string run;
  bool yes = false;
};

// The journal says first that a boundary is gone: a crash in between leaves files, never records
// without files.
void remove(const storage::RunLayout& layout,
            const storage::ReplayResult& replayed,
            const State& state,
            const std::vector<Surplus>& surplus) {
  std::vector<Event> events;
  for (const Surplus& item : surplus) {
    if (item.record) events.push_back(*item.record);
  }
  if (!events.empty()) append_events(layout, replayed, state, events);
  for (const Surplus& item : surplus) fs::remove_all(layout.resolve(item.path));
}

ExitCode run_clean(const CleanOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  require_idle(layout, [&terminal](const std::string& text) { terminal.say(text); });
  const storage::ReplayResult replayed = storage::replay_journal(layout);
  const State state = fold(replayed).state;
  const std::vector<Surplus> surplus = find_surplus(layout, state);
  std::uint64_t bytes = 0;
  nlohmann::json items = nlohmann::json::array();
  Table table;
  table.column("bytes", 2, true).column("path", 3).column("why", 1);
  for (const Surplus& item : surplus) {
    bytes += item.bytes;
    table.row({bytes_text(item.bytes), item.path, item.why});
    items.push_back({{"path", item.path}, {"bytes", item.bytes}, {"why", item.why}});
  }
  if (surplus.empty()) {
    terminal.print("nothing to remove");
  } else {
    for (const std::string& line : table.render(terminal.answer_width())) terminal.print(line);
  }
  const bool removes = !surplus.empty() &&
                       (options.yes || terminal.confirm("remove " + bytes_text(bytes) + "?",
                                                        "nothing removed; pass --yes to remove " +
                                                            bytes_text(bytes)));
  if (removes) {
    remove(layout, replayed, state, surplus);
    terminal.print("removed " + bytes_text(bytes));
  }
  terminal.print_json({{"items", items}, {"bytes", bytes}, {"removed", removes}});
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_clean(CLI::App& app) {
  const auto options = std::make_shared<CleanOptions>();
  add_run(app, options->run);
  app.add_flag("--yes", options->yes, "do not ask");
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_clean(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
