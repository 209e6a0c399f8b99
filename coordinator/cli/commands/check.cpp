#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/format.hpp"
#include "coordinator/cli/inspection.hpp"
#include "coordinator/cli/interrupt.hpp"
#include "coordinator/fold.hpp"
#include "coordinator/status.hpp"
#include "storage/model_config.hpp"
#include "storage/recipe.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;

struct CheckOptions {
  std::string run;
  bool repair = false;
};

// Marks damaged files lost, so that the next run makes them again; takes damaged tokens files away
// for the same end.
void repair(const storage::RunLayout& layout,
            const storage::ReplayResult& replayed,
            const Inspection& inspection) {
  std::vector<Event> events;
  std::set<std::string> seen;
  for (const Damage& damage : inspection.damage) {
    if (!seen.insert(damage.file).second) continue;
    if (!damage.is_lost) continue;
    if (damage.file.starts_with("tokens/")) {
      fs::rename(layout.root() / damage.file, layout.root() / (damage.file + ".damaged"));
    } else {
      events.emplace_back(FileLost{damage.file, "found by check: " + damage.problem});
    }
  }
  if (!events.empty()) append_events(layout, replayed, events);
}

ExitCode answer(const CheckOptions& options, const Inspection& inspection, Terminal& terminal) {
  nlohmann::json problems = nlohmann::json::array();
  const auto num_lost = std::count_if(inspection.damage.begin(),
                                      inspection.damage.end(),
                                      [](const Damage& damage) { return damage.is_lost; });
  for (const Damage& damage : inspection.damage) {
    // Readers name the file themselves.
    const bool names_file = damage.problem.find(damage.file) != std::string::npos;
    const std::string place = names_file ? "" : damage.file + ", " + damage.where + ": ";
    terminal.print(wrap(place + one_line(damage.problem), terminal.answer_width(), 4));
    problems.push_back(
        {{"file", damage.file}, {"where", damage.where}, {"problem", damage.problem}});
  }
  terminal.print_json({{"files", inspection.num_files},
                       {"bytes", inspection.num_bytes},
                       {"problems", problems},
                       {"repaired", options.repair ? num_lost : 0}});
  const std::string all =
      std::to_string(inspection.num_files) + " files, " + bytes_text(inspection.num_bytes);
  if (problems.empty()) {
    terminal.print(all + ": all sound");
    return ExitCode::kOk;
  }
  terminal.print(std::to_string(problems.size()) + " problem(s) in " + all);
  const bool all_lost = num_lost == std::ssize(inspection.damage);
  if (!all_lost) {
    terminal.print(std::to_string(std::ssize(inspection.damage) - num_lost) +
                   " of them no run can make again: journal lines that replay goes around, or "
                   "files that cannot be read now");
  }
  if (options.repair) {
    if (num_lost > 0) {
      terminal.print(std::to_string(num_lost) + " marked lost: 'hedgerow run --run " + options.run +
                     "' makes them again");
    }
    return all_lost ? ExitCode::kOk : ExitCode::kFailed;
  }
  if (num_lost > 0) {
    terminal.print("'hedgerow check --repair --run " + options.run + "' marks " +
                   std::to_string(num_lost) + " lost, so that a run makes them again");
  }
  return ExitCode::kFailed;
}

ExitCode run_check(const CheckOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  require_run(layout);
  const auto say = [&terminal](const std::string& text) { terminal.say(text); };
  if (options.repair) require_idle(layout, say);
  const storage::Recipe recipe = storage::Recipe::load(layout.recipe());
  const int vocab_size = storage::ModelDirectory::open(recipe.model.path).config().vocab_size;
  const storage::ReplayResult replayed = storage::replay_journal(layout);
  const FoldedRun folded = fold(replayed);
  const InterruptScope interrupts;
  Inspection inspection;
  {
    ProgressBar bar(terminal, "check");
    inspection = inspect(layout, replayed, folded.state, vocab_size, [&](double share) {
      bar.update(share);
      return !is_interrupted();
    });
  }
  if (is_interrupted()) return ExitCode::kInterrupted;
  if (options.repair) repair(layout, replayed, inspection);
  return answer(options, inspection, terminal);
}

}  // namespace

RunCommand declare_check(CLI::App& app) {
  const auto options = std::make_shared<CheckOptions>();
  add_run(app, options->run);
  app.add_flag("--repair",
               options->repair,
               "mark what is damaged as lost, so that the next run makes it again");
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_check(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
