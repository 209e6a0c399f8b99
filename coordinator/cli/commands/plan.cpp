#include "coordinator/plan/plan.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/run/planning.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/net/binding.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/wire/run_keys.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;

struct PlanOptions {
  std::string run, recipe, device;
  std::optional<int> workers;
};

// What it rests on is said with it: nobody has measured this machine.
std::string time_text(const Plan& plan) {
  if (!plan.core.is_known()) return "not known: nothing has been measured on a GPU yet";
  std::string text;
  double seconds = 0.0;
  for (const StageEstimate& estimate : plan.estimates) {
    if (estimate.seconds <= 0) continue;
    text += estimate.stage + " " + duration_text(estimate.seconds) + ", ";
    seconds += estimate.seconds;
  }
  constexpr double kGiga = 1e9;
  return text + "in all about " + duration_text(seconds) +
         "; assumed and not measured: a core of this kind does " +
         number_text(plan.core.product_flops / kGiga) +
         " x 10^9 operations a second in products, " + number_text(plan.core.other_flops / kGiga) +
         " in attention";
}

// `is_judged`: the workers are of this machine, whose memory they have.
void print_plan(const Plan& plan,
                const std::optional<UnreadText>& unread,
                bool is_judged,
                Terminal& terminal) {
  const auto line = [&](std::string label, const std::string& text) {
    constexpr int kLabelWidth = 10;
    label.resize(kLabelWidth, ' ');
    terminal.print(label + wrap(text, terminal.answer_width() - kLabelWidth, kLabelWidth));
  };
  line("blocks",
       std::to_string(plan.num_blocks()) + " of " + std::to_string(plan.num_layers) + " layers");
  const int shards = plan.capture.num_shards();
  line("data",
       std::to_string(plan.capture.num_train) + " sequences for training, " +
           std::to_string(plan.capture.num_validation) + " for validation" +
           (plan.captures ? ", " + std::to_string(shards) +
                                (shards == 1 ? " shard a boundary" : " shards a boundary")
                          : ""));
  if (unread) {
    line("text",
         bytes_text(unread->bytes) + ", not read yet: roughly " +
             std::to_string(unread->rough_sequences) + " sequences (4 bytes a token) for the " +
             std::to_string(plan.capture.num_train + plan.capture.num_validation) +
             " above; a shorter text is gone through more than once");
  }
  line("disk",
       bytes_text(plan.peak_disk_bytes) + " at most, " + bytes_text(plan.final_disk_bytes) +
           " at the end; " +
           (plan.captures ? "one boundary " + bytes_text(plan.boundary_bytes)
                          : "one block stores no boundary"));
  std::string memory =
      plan.captures ? "capture " + bytes_text(plan.capture_memory_bytes) + ", " : "";
  memory += "transfer " + bytes_text(plan.transfer_memory_bytes);
  if (plan.evaluates) memory += ", evaluate " + bytes_text(plan.evaluate_memory_bytes);
  if (plan.finetunes) memory += ", finetune " + bytes_text(plan.finetune_memory_bytes) + " a rank";
  line("memory", memory + (is_judged ? "" : "; each worker is asked for its own when it joins"));
  line("time", time_text(plan));
  for (const std::string& warning : plan.warnings) line("warning", warning);
  for (const PlanProblem& problem : plan.problems)
    line("problem", problem.message + "; " + problem.remedy);
  terminal.print(!plan.fits() ? "it does not fit"
                 : unread     ? "model, memory and disk: it fits; the text was not read"
                              : "it fits");
}

ExitCode run_plan(const PlanOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  const fs::path recorded = layout.recipe();
  require(!options.recipe.empty() || fs::exists(recorded),
          options.run + " holds no run.toml; give --recipe FILE, or --run DIR of a run");
  require(options.device.empty() || !options.recipe.empty(),
          "--device goes with --recipe FILE; a run keeps the device that it was begun with");
  storage::Recipe recipe =
      options.recipe.empty() ? recipe_of_run(layout) : storage::Recipe::load(options.recipe);
  if (!options.device.empty()) recipe.plan.device = options.device;
  resolve_for_this_machine(recipe);
  recipe.workers.local = options.workers.value_or(recipe.workers.local);
  Plan plan = plan_of(recipe, options.run);
  const std::optional<UnreadText> text = unread_text(recipe, options.run);
  if (text) {
    if (auto problem = text_problem(*text, recipe.data_transfer))
      plan.problems.push_back(std::move(*problem));
  }
  // Refused by run; a plan is often made before the directory with its keys is.
  const std::string run = options.run == "." && !fs::exists(recorded) ? "DIR" : options.run;
  if (auto problem = missing_keys(recipe.workers.bind, wire::has_keys(layout), run))
    plan.warnings.push_back(std::move(*problem));
  print_plan(plan, text, recipe.workers.local > 0, terminal);
  nlohmann::json answer = plan;
  if (text) answer["unread_text"] = {{"bytes", text->bytes}, {"sequences", text->rough_sequences}};
  terminal.print_json(answer);
  return plan.fits() ? ExitCode::kOk : ExitCode::kUsage;
}

}  // namespace

RunCommand declare_plan(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  app.add_option("--recipe", options->recipe, "the recipe; without it the run's own")
      ->type_name("FILE");
  one_of(app.add_option(
             "--device", options->device, "where to compute, in place of the recipe's plan.device"),
         {"auto", "cpu", "cuda"});
  app.add_option("--workers",
                 options->workers,
                 "local workers in place of the recipe's; 0: those that join from elsewhere, whose "
                 "memory this machine's does not limit")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""));
  add_run(app, options->run);
  return [options](Terminal& terminal) {
    // With a recipe it is where the run will lie, which need not be a run yet.
    if (options->run.empty())
      options->run = options->recipe.empty()
                         ? run_or_here("", "--recipe FILE (the recipe of a new one)")
                         : ".";
    return run_plan(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
