#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/run/gpu.hpp"
#include "coordinator/cli/run/inspection.hpp"
#include "coordinator/cli/run/planning.hpp"
#include "coordinator/cli/run/slurm_scripts.hpp"
#include "coordinator/cli/run/stop_request.hpp"
#include "coordinator/cli/run/student_of.hpp"
#include "coordinator/cli/run/tokenizing.hpp"
#include "coordinator/cli/terminal/control.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/cli/terminal/screen.hpp"
#include "coordinator/cli/terminal/view.hpp"
#include "coordinator/dispatch/term.hpp"
#include "coordinator/host/tokenize_stage.hpp"
#include "coordinator/net/binding.hpp"
#include "coordinator/plan/measured_nodes.hpp"
#include "coordinator/serve/run_service.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/web/server.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "storage/base/build_info.hpp"
#include "storage/files/file.hpp"
#include "storage/history/history_file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;
using storage::Recipe;
using storage::RunLayout;

struct RunCommandOptions {
  std::string run, recipe, cluster, device, worker_launcher, stop_before, web, student_of;
  std::optional<int> workers;
};

void write_recipe(const RunLayout& layout, const Recipe& recipe) {
  storage::write_atomically(layout.recipe(), recipe.to_run_toml());
}

// The recipe of --recipe. This machine counts only where its own workers compute.
Recipe loaded_recipe(const RunCommandOptions& options) {
  const bool computes_here = options.workers != 0 && options.worker_launcher.empty();
  return computes_here ? load_for_this_machine(options.recipe, options.device, options.workers)
                       : Recipe::load(options.recipe);
}

// What the command line asks for: the recipe of --recipe, else the run's own, on --device.
Recipe asked_recipe(const RunCommandOptions& options, const RunLayout& layout) {
  Recipe recipe = options.recipe.empty() ? recipe_of_run(layout) : loaded_recipe(options);
  if (!options.device.empty()) recipe.plan.device = options.device;
  return recipe;
}

// Whom the run is planned for: of --cluster, else the run's own.
PlanFor planned_for(const RunCommandOptions& options,
                    const RunLayout& layout,
                    const Recipe& recipe) {
  PlanFor planned = plan_for(recipe, layout.root(), options.cluster, options.workers);
  planned.is_there = true;
  planned.in_allocation = !planned.cluster && !options.worker_launcher.empty();
  return planned;
}

// What "auto" meant when the run began is what it means now.
void keep_resolved(Recipe& recipe, const Recipe& recorded) {
  if (recipe.plan.compute_dtype == "auto") recipe.plan.compute_dtype = recorded.plan.compute_dtype;
  if (recipe.plan.layers_per_block == 0)
    recipe.plan.layers_per_block = recorded.plan.layers_per_block;
  if (recipe.plan.keep_boundaries == "auto")
    recipe.plan.keep_boundaries = recorded.plan.keep_boundaries;
  if (recipe.workers.threads == 0) recipe.workers.threads = recorded.workers.threads;
  if (recipe.finetune.threads == 0) recipe.finetune.threads = recorded.finetune.threads;
  recipe.made_by = recorded.made_by;
}

// The recipe as its workers will run it. Throws what is wrong with it or its model, before
// anything is written.
Recipe ready_recipe(const RunCommandOptions& options, const RunLayout& layout) {
  Recipe recipe = asked_recipe(options, layout);
  const RunLayout student(options.student_of);
  if (!options.student_of.empty()) {
    require_run(student);
    keep_resolved(recipe, recipe_of_run(student));
  }
  const PlanFor planned = planned_for(options, layout, recipe);
  resolve(recipe, planned);
  if (!options.student_of.empty()) require_same_student(student, recipe);
  recipe.made_by = {storage::version(), storage::git_hash()};
  require_keys_for(recipe.workers.bind, wire::has_keys(layout), layout);
  require_fits(plan_of(recipe, planned));
  return recipe;
}

void make_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error) return;
  using storage::ErrorKind;
  const ErrorKind kind =
      storage::system_error("make the directory", directory.string(), error.value()).kind();
  // /proc and its like say "no such file" where nothing can be made.
  throw storage::Error(kind == ErrorKind::kNotFound ? ErrorKind::kUnavailable : kind,
                       "the run directory " + directory.string() + " cannot be made: " +
                           error.message() + "; name a place where you may write with --run");
}

// Empty, but for what other commands prepare for a run that is yet to begin (keys; job scripts and
// tokens, by `submit`), and for what one that was killed as it began has left.
bool holds_no_run(const RunLayout& layout) {
  const bool was_submitted = fs::exists(layout.slurm_directory());
  const fs::path tokens =
      (layout.root() / RunLayout::tokens(storage::DataStage::kTransfer)).parent_path();
  const std::string tokenize_stage = layout.tokenize_stage_file().filename().string();
  return std::all_of(
      fs::directory_iterator(layout.root()), fs::directory_iterator(), [&](const auto& entry) {
        return entry.path() == layout.keys_directory() ||
               entry.path() == layout.slurm_directory() ||
               (was_submitted && entry.path() == tokens) ||
               entry.path().filename().string().find(tokenize_stage) != std::string::npos;
      });
}

// Tokens that `submit` made are those of the recipe that it wrote beside its scripts.
void remove_tokens_of_others(const RunLayout& layout, const std::string& recipe) {
  std::error_code missing;
  if (!fs::equivalent(recipe, layout.slurm_directory() / kSlurmRecipe, missing) || missing)
    remove_tokens(layout);
}

// Marks the run as this process's from here on; throws if another process works on it.
using Claim = std::function<void()>;

Recipe begin_run(const RunCommandOptions& options,
                 const RunLayout& layout,
                 const Claim& claim,
                 Terminal& terminal) {
  require(!fs::exists(layout.root()) || fs::is_directory(layout.root()),
          options.run + " is a file; name a new directory with --run");
  require(!options.recipe.empty(),
          options.run + " is no run directory yet; give --recipe FILE to start one there");
  if (fs::exists(layout.root()) && !holds_no_run(layout)) {
    std::ignore = refuse_if_held(layout, {});  // one that begins at this moment
    require(false, options.run + " holds other files and no run.toml; choose a new directory");
  }
  Recipe recipe = ready_recipe(options, layout);
  make_directory(layout.root());
  claim();
  require(!fs::exists(layout.recipe()),
          options.run +
              " was begun by another 'hedgerow run' a moment ago; the same command "
              "goes on with it");
  remove_tokens_of_others(layout, options.recipe);
  write_recipe(layout, recipe);
  if (!options.cluster.empty()) copy_cluster(options.cluster, layout.cluster());
  terminal.say("new run in " + options.run +
               (options.student_of.empty() ? "" : ", with the student of " + options.student_of));
  return recipe;
}

std::string joined(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += (text.empty() ? "" : "; ") + field;
  return text;
}

bool is_about_text(const std::string& field) {
  return field.starts_with("data.") || field.starts_with("model.");
}

// A run without a journal has computed nothing: a recipe whose first try failed is mended and given
// again, and does not need another directory.
Recipe begin_again(const RunCommandOptions& options,
                   const RunLayout& layout,
                   const std::vector<std::string>& changes,
                   Terminal& terminal) {
  if (std::any_of(changes.begin(), changes.end(), is_about_text)) remove_tokens(layout);
  require(!options.recipe.empty(),
          "--device " + options.device + " differs from what " + options.run +
              " was begun with; give its --recipe FILE too, whose \"auto\" may mean another dtype "
              "there");
  Recipe recipe = ready_recipe(options, layout);
  write_recipe(layout, recipe);
  terminal.say("nothing was computed here yet, so the run begins with the new recipe: " +
               joined(changes));
  return recipe;
}

// A stage that is done is not done again, so a change to it would be accepted and have no effect.
void refuse_what_comes_too_late(const std::vector<std::string>& changes, const RunLayout& layout) {
  const RunStatus status = read_status(layout);
  for (const auto& [field, stage] : {std::pair("finetune.max_steps:", Stage::kFinetune),
                                     std::pair("evaluate.max_sequences:", Stage::kEvaluate)}) {
    const auto change =
        std::find_if(changes.begin(), changes.end(), [field = field](const std::string& text) {
          return text.starts_with(field);
        });
    const bool is_done =
        std::any_of(status.tasks.begin(), status.tasks.end(), [stage = stage](const auto& task) {
          return task.stage == stage && task.state == "done";
        });
    require(
        change == changes.end() || !is_done,
        layout.root().string() + ": " + std::string(to_string(stage)) +
            " is done, so a change comes too late: " + (change == changes.end() ? "" : *change) +
            "; change it back, or begin a new run in another directory");
  }
}

// The journal first: what a killed command leaves of this, the next run writes to the end.
void change_recipe(const RunLayout& layout,
                   const storage::ReplayResult& replayed,
                   State state,
                   const Recipe& recipe,
                   const std::vector<std::string>& changes) {
  const RecipeRecorded event{recipe.to_run_toml(), changes};
  append_events(layout, replayed, state, {event});
  static_cast<void>(apply(state, event));
  put_back_recipe(layout, state);
}

void warn_of_other_build(const Recipe& recorded, Terminal& terminal) {
  if (recorded.made_by.git_hash == storage::git_hash()) return;
  terminal.warn("this run was begun by build " + recorded.made_by.version + "+" +
                recorded.made_by.git_hash + ", this is " + storage::build() +
                "; equal bytes are no longer promised");
}

// run.toml is damaged, and the journal does not have its text either: --recipe is the recipe, if it
// gives what the run was begun with.
Recipe write_recipe_again(const RunCommandOptions& options,
                          const RunLayout& layout,
                          const State& state,
                          const std::string& damage,
                          Terminal& terminal) {
  Recipe recipe = asked_recipe(options, layout);  // a copy of run.toml itself is kept as it is
  const bool has_begun = fs::exists(layout.journal_directory());
  if (!has_begun || !was_run_toml(recipe.to_run_toml(), layout, state))
    recipe = ready_recipe(options, layout);
  if (!has_begun) remove_tokens(layout);  // of which texts is not known any more
  require(!has_begun || was_run_toml(recipe.to_run_toml(), layout, state),
          damage + "; but " + options.recipe +
              " is another recipe, or this machine or build fills it in otherwise; give it where "
              "the run was begun, or begin a new run in another directory");
  write_recipe(layout, recipe);
  terminal.warn(damage + "; it was written again from " + options.recipe);
  return recipe;
}

Recipe resume_run(const RunCommandOptions& options, const RunLayout& layout, Terminal& terminal) {
  if (const auto problem = journal_problem(layout))
    throw storage::Error(storage::ErrorKind::kCorrupt, *problem);
  if (options.recipe.empty() && options.device.empty()) {
    Recipe recorded = recipe_of_run(layout);
    warn_of_other_build(recorded, terminal);
    return recorded;
  }
  const storage::ReplayResult replayed = replay_if_any(layout);
  const State state = fold(replayed).state;
  // --recipe is held against the journal's, whatever became of run.toml.
  const std::optional<Recipe> in_journal =
      options.recipe.empty() ? std::nullopt : recorded_recipe(layout, state);
  Recipe recorded;
  try {
    recorded = in_journal ? *in_journal : recipe_of_run(layout, state);
  } catch (const storage::Error& error) {
    if (options.recipe.empty()) throw;
    return write_recipe_again(options, layout, state, error.what(), terminal);
  }
  warn_of_other_build(recorded, terminal);
  Recipe recipe = asked_recipe(options, layout);
  keep_resolved(recipe, recorded);
  const storage::RecipeDifference changes = storage::difference(recorded, recipe);
  if (!changes.unsafe.empty() && !fs::exists(layout.journal_directory()))
    return begin_again(options, layout, changes.unsafe, terminal);
  require(changes.unsafe.empty(),
          (options.recipe.empty() ? "--device " + options.device : options.recipe) +
              " differs from the recipe that " + options.run + " was begun with: " +
              joined(changes.unsafe) + "; change it back, or begin a new run in another directory");
  if (changes.safe.empty()) {
    const auto problem = recipe_problem(layout, state);
    if (problem && put_back_recipe(layout, state)) terminal.warn(*problem + "; it was put back");
    return recorded;
  }
  require_keys_for(recipe.workers.bind, wire::has_keys(layout), layout);
  if (fs::exists(layout.journal_directory())) {
    refuse_what_comes_too_late(changes.safe, layout);
    change_recipe(layout, replayed, state, recipe, changes.safe);
  } else {
    write_recipe(layout, recipe);
  }
  terminal.say("recipe changed: " + joined(changes.safe));
  return recipe;
}

// Shows a run while it runs: one status line on a tty, a line an event elsewhere, JSON lines with
// --json.
class Reporter final : public RunObserver {
 public:
  Reporter(const RunLayout& layout,
           Terminal& terminal,
           std::optional<TokenizeStage>& tokenize_stage)
      : history_(layout), terminal_(terminal), tokenize_stage_(tokenize_stage) {}

  void on_status(const RunStatus& status) override {
    for (const std::string& warning : status.warnings) {
      if (warned_of_.insert(warning).second) terminal_.warn(warning);
    }
    tokenize_stage_.reset();
    const storage::History& measured = history();
    if (status.is_stopping && !std::exchange(said_stopping_, true) && !terminal_.can_redraw())
      terminal_.say(status_line(status, kUnlimitedWidth, &measured));
    terminal_.status(status_line(status, terminal_.width() - 1, &measured));
    nlohmann::json object = status;
    terminal_.print_json({{"status", std::move(object)}});
  }

  void on_event(const ExplainedEvent& event) override {
    const std::string line = event.subject + ": " + event.text;
    terminal_.can_redraw() ? terminal_.detail(line) : terminal_.say(line);
    terminal_.print_json({{"event",
                           {{"seq", event.seq},
                            {"at", event.at},
                            {"subject", event.subject},
                            {"text", event.text}}}});
  }

  void on_log(const std::string& line) override { terminal_.say(one_line(line)); }

  // As it is now.
  const storage::History& history() {
    history_.read_what_it_can();
    return history_.history();
  }

 private:
  storage::HistoryReader history_;
  Terminal& terminal_;
  std::optional<TokenizeStage>& tokenize_stage_;
  std::set<std::string> warned_of_;
  bool said_stopping_ = false;
};

void say_what_is_done(const RunLayout& layout, Terminal& terminal) {
  const RunStatus status = read_status(layout);
  if (status.num_blocks == 0) return;  // it has not begun
  // That a run is done is said once its results are verified.
  if (status.state == "done") return;
  storage::HistoryReader history(layout);
  history.read_what_it_can();
  terminal.say("going on: " + status_line(status, kUnlimitedWidth, &history.history()));
}

ExitCode interrupted(const RunCommandOptions& options, Terminal& terminal) {
  // A script that runs us names itself, since it goes on with more than the run.
  const std::string script = terminal.console().environment("HEDGEROW_RESUME_WITH").value_or("");
  terminal.say("stopped; '" + (script.empty() ? "hedgerow run --run " + options.run : script) +
               "' goes on");
  terminal.print_json(
      {{"outcome",
        {{"exit_code", static_cast<int>(ExitCode::kInterrupted)}, {"summary", "stopped"}}}});
  return ExitCode::kInterrupted;
}

ExitCode run_run(const RunCommandOptions& options, Terminal& terminal) {
  const RunLayout layout(options.run);
  const InterruptScope interrupts;
  // A run takes days: it goes on when the reader of its output is gone.
  const ClosedPipeScope closed_pipe;
  const bool is_new = !fs::exists(layout.recipe()) && !fs::exists(layout.journal_directory());
  const auto say = [&terminal](const std::string& text) { terminal.say(text); };
  const Leftovers leftovers = refuse_if_held(layout, {say});
  std::optional<TokenizeStage> tokenize_stage;  // until a coordinator shows itself
  const Claim claim = [&] {
    tokenize_stage.emplace(layout, leftovers);
    withdraw_stop(layout);
  };
  if (!is_new) claim();
  const Recipe recipe =
      is_new ? begin_run(options, layout, claim, terminal) : resume_run(options, layout, terminal);
  // One that was killed meanwhile takes it again.
  if (!options.student_of.empty() && !fold(replay_if_any(layout)).state.geometry)
    take_student_of(RunLayout(options.student_of), layout);
  if (!is_new) say_what_is_done(layout, terminal);
  // Before an hour is spent on tokens.
  const bool has_keys = wire::read_coordinator_keys(layout).has_value();
  require_keys_for(recipe.workers.bind, has_keys, layout);
  // Said once, and not by each worker that is started and cannot connect.
  const int local_workers = options.workers.value_or(recipe.workers.local);
  const bool has_workers = local_workers > 0;
  if (has_keys && has_workers) static_cast<void>(wire::read_worker_keys(layout));
  const std::string idle = idle_gpus_warning(recipe, local_workers, gpus_of_this_machine());
  if (!idle.empty()) terminal.warn(idle);
  std::optional<ReloadScope> reloads;
  if (has_keys) reloads.emplace();
  const StopWatcher watcher(layout);
  if (!tokenize_missing(layout, recipe, terminal)) return interrupted(options, terminal);

  RunOptions run_options;
  run_options.run_directory = layout.root();
  run_options.worker_binary = worker_binary(terminal.console());
  run_options.local_workers = options.workers;
  run_options.worker_launcher = options.worker_launcher;
  run_options.stops_before_finetune = wire::task_kind_from(options.stop_before) == Stage::kFinetune;
  run_options.web = options.web;
  run_options.says_web_secret = terminal.console().err_is_tty();
  run_options.build = storage::build();
  run_options.stop_requests = &num_interrupts();
  run_options.reload_requests = &num_reloads();
  run_options.leftovers = leftovers;
  run_options.say = say;
  Reporter reporter(layout, terminal, tokenize_stage);
  const RunOutcome outcome = coordinator::run(run_options, reporter);
  terminal.clear_status();
  if (outcome.exit_code == ExitCode::kInterrupted) return interrupted(options, terminal);
  for (const std::string& line : whole_view(outcome.status,
                                            terminal.answer_width(),
                                            kUnlimitedRows,
                                            &reporter.history(),
                                            /*draws_heat=*/false))
    terminal.print(line);
  terminal.say(outcome.summary);
  if (const std::string verdict = control_verdict(outcome.status); !verdict.empty())
    terminal.say(verdict);
  terminal.print_json(
      {{"outcome",
        {{"exit_code", static_cast<int>(outcome.exit_code)}, {"summary", outcome.summary}}}});
  return outcome.exit_code;
}

}  // namespace

RunCommand declare_run(CLI::App& app) {
  const auto options = std::make_shared<RunCommandOptions>();
  add_run(app, options->run);
  app.add_option("--recipe", options->recipe, "the recipe of a new run; needed once")
      ->type_name("FILE");
  one_of(app.add_option(
             "--device", options->device, "where to compute, in place of the recipe's plan.device"),
         {"auto", "cpu", "cuda"});
  app.add_option("--workers",
                 options->workers,
                 "local workers in place of the recipe's; 0: only those that join from elsewhere")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""));
  app.add_option(
         "--cluster",
         options->cluster,
         "the machines that will compute: the run is planned for them, and no local workers "
         "start unless --workers says so")
      ->type_name("FILE");
  app.add_option("--worker-launcher",
                 options->worker_launcher,
                 "a program that starts workers elsewhere, as by srun, and ends with them; started "
                 "whenever workers are wanted")
      ->type_name("FILE");
  app.add_option("--student-of",
                 options->student_of,
                 "a new run begins with the student of this one, and all that lies before it: its "
                 "recipe may differ in the last stage")
      ->type_name("RUN");
  one_of(app.add_option("--stop-before",
                        options->stop_before,
                        "leave this stage to another command, once all before it is done"),
         {"finetune"});
  app.add_option("--web",
                 options->web,
                 "where the run's page listens, or none; by default on loopback, at a port that is "
                 "free")
      ->type_name("HOST:PORT");
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    // Also when it goes on.
    if (!options->cluster.empty() || fs::exists(RunLayout(options->run).cluster()))
      options->workers = options->workers.value_or(0);
    if (!options->web.empty() && options->web != "none")
      static_cast<void>(parse_web_address(options->web));
    require(options->worker_launcher.empty() || fs::exists(options->worker_launcher),
            "--worker-launcher " + options->worker_launcher + ": no such file");
    return run_run(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
