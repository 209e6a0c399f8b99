#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/run/inspection.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/state/fold.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;

struct CheckOptions {
  std::string run;
  bool repair = false;
};

// Marks damaged files lost, so that the next run makes them again; takes damaged tokens files away
// for the same end; puts run.toml back. The term that says so settles damage of the journal.
void repair(const storage::RunLayout& layout,
            const storage::ReplayResult& replayed,
            const State& state,
            const Inspection& inspection) {
  std::vector<Event> events;
  std::set<std::string> seen;
  bool settles = false;
  for (const Damage& damage : inspection.damage) {
    settles |= damage.repair == Repair::kSettle;
    if (damage.repair == Repair::kPutBack) put_back_recipe(layout, state);
    if (damage.repair != Repair::kMarkLost || !seen.insert(damage.file).second) continue;
    if (damage.file.starts_with("tokens/")) {
      fs::rename(layout.root() / damage.file, layout.root() / (damage.file + ".damaged"));
    } else {
      events.emplace_back(FileLost{damage.file, "found by check: " + damage.problem});
    }
  }
  if (settles || !events.empty()) append_events(layout, replayed, state, events);
}

std::ptrdiff_t count(const Inspection& inspection, Repair repair) {
  return std::count_if(inspection.damage.begin(),
                       inspection.damage.end(),
                       [repair](const Damage& damage) { return damage.repair == repair; });
}

void print_problems(const Inspection& inspection, Terminal& terminal) {
  for (const Damage& damage : inspection.damage) {
    // Readers name the file themselves.
    const bool names_file = damage.problem.find(damage.file) != std::string::npos;
    const std::string place = names_file ? "" : damage.file + ", " + damage.where + ": ";
    terminal.print(wrap(place + one_line(damage.problem), terminal.answer_width(), 4));
  }
}

// What was done about each kind of damage, or what --repair would do.
void print_repairs(const CheckOptions& options, const Inspection& inspection, Terminal& terminal) {
  const std::string run = "'hedgerow run --run " + options.run + "'";
  const auto say = [&](Repair repair, const std::string& done, const std::string& would) {
    if (const auto number = count(inspection, repair); number > 0)
      terminal.print(std::to_string(number) + (options.repair ? done : would));
  };
  if (!options.repair && count(inspection, Repair::kNone) < std::ssize(inspection.damage))
    terminal.print("'hedgerow check --repair --run " + options.run + "' does this:");
  say(Repair::kMarkLost,
      " marked lost: " + run + " makes them again",
      " to be marked lost, so that " + run + " makes them again");
  say(Repair::kPutBack, " put back from the journal", " to be put back from the journal");
  say(Repair::kSettle,
      " settled: " + run + " does again what those records said, if it is not done yet",
      " to be settled: " + run + " does again what those records said");
  say(Repair::kNone,
      " that nothing here can mend: what cannot be read now, or is nowhere recorded",
      " that nothing here can mend: what cannot be read now, or is nowhere recorded");
}

ExitCode answer(const CheckOptions& options, const Inspection& inspection, Terminal& terminal) {
  print_problems(inspection, terminal);
  nlohmann::json problems = nlohmann::json::array();
  for (const Damage& damage : inspection.damage) {
    problems.push_back(
        {{"file", damage.file}, {"where", damage.where}, {"problem", damage.problem}});
  }
  const bool can_repair = count(inspection, Repair::kNone) == 0;
  const auto num_repaired = std::ssize(inspection.damage) - count(inspection, Repair::kNone);
  terminal.print_json({{"files", inspection.num_files},
                       {"bytes", inspection.num_bytes},
                       {"problems", problems},
                       {"settled", inspection.num_settled},
                       {"repaired", options.repair ? num_repaired : 0}});
  const std::string all =
      std::to_string(inspection.num_files) + " files, " + bytes_text(inspection.num_bytes);
  const std::string settled =
      inspection.num_settled == 0
          ? ""
          : "; " + std::to_string(inspection.num_settled) +
                " damaged line(s) of the journal were settled by a later term";
  if (problems.empty()) {
    terminal.print(all + ": all sound" + settled);
    return ExitCode::kOk;
  }
  terminal.print(std::to_string(problems.size()) + " problem(s) in " + all + settled);
  print_repairs(options, inspection, terminal);
  return options.repair && can_repair ? ExitCode::kOk : ExitCode::kFailed;
}

// The model that the recipe names, by the journal's text of it where run.toml is damaged.
int vocab_size_of(const storage::RunLayout& layout, const State& state) {
  const std::optional<storage::Recipe> recorded = recorded_recipe(layout, state);
  const std::string model = recorded ? recorded->model.path : recipe_of_run(layout).model.path;
  return storage::ModelDirectory::open(model).config().vocab_size;
}

ExitCode run_check(const CheckOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  require_run(layout);
  const auto say = [&terminal](const std::string& text) { terminal.say(text); };
  if (options.repair) require_idle(layout, say);
  // Before its first term a run has its recipe alone.
  if (!fs::exists(layout.journal_directory())) std::ignore = recipe_of_run(layout);
  const storage::ReplayResult replayed = storage::replay_journal(layout);
  const State state = fold(replayed).state;
  const InterruptScope interrupts;
  Inspection inspection;
  {
    ProgressBar bar(terminal, "check");
    inspection = inspect(layout, replayed, state, vocab_size_of(layout, state), [&](double share) {
      bar.update(share);
      return !is_interrupted();
    });
  }
  if (is_interrupted()) return ExitCode::kInterrupted;
  if (options.repair) repair(layout, replayed, state, inspection);
  return answer(options, inspection, terminal);
}

}  // namespace

RunCommand declare_check(CLI::App& app) {
  const auto options = std::make_shared<CheckOptions>();
  add_run(app, options->run);
  app.add_flag("--repair",
               options->repair,
               "mark damaged files as lost, so that the next run makes them again; put a damaged "
               "run.toml back");
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_check(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
