#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/run/gpu.hpp"
#include "coordinator/cli/run/planning.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/net/binding.hpp"
#include "coordinator/plan/planner.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/wire/run_keys.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;

struct PlanOptions {
  std::string run, recipe, model, cluster, device;
  std::optional<int> workers;
  bool simulate = false;
};

std::string money_text(double amount) { return number_text(amount, amount < 1000.0 ? 3 : 6); }

// What the figures rest on is said with them.
std::string speed_text(const WorkerKind& kind) {
  constexpr double kGiga = 1e9;
  return std::string(kind.on_gpu ? "a GPU" : "a core") + " of " + kind.name + " does " +
         number_text(kind.speed.product_flops / kGiga, 6) +
         " x 10^9 operations a second in products, " +
         number_text(kind.speed.other_flops / kGiga, 6) + " in attention" +
         (kind.measured.empty() ? " (assumed, not measured)" : " (measured " + kind.measured + ")");
}

std::string time_text(const Plan& plan) {
  if (plan.workers.empty()) return "not known before the workers are; --cluster FILE tells of them";
  if (!plan.knows_times()) return "not known: nothing has been measured on a GPU yet";
  std::string text = "in all about " + duration_text(plan.seconds());
  if (plan.gpu_hours() > 0) text += ", " + number_text(plan.gpu_hours(), 3) + " GPU-hours";
  if (plan.cost() > 0) text += ", cost " + money_text(plan.cost());
  for (const WorkerKind& kind : plan.workers) text += "; " + speed_text(kind);
  return text;
}

std::string workers_text(const WorkerKind& kind) {
  std::string text = counted(kind.workers(), "worker") + " on " + counted(kind.nodes, "node") +
                     " (" + kind.name + ")";
  if (kind.worker_memory_bytes() > 0)
    text += ", " + bytes_text(kind.worker_memory_bytes()) + (kind.on_gpu ? " of GPU memory" : "") +
            " each";
  return text;
}

std::string mesh_text(const MeshPlan& plan) {
  constexpr double kPercent = 100.0;
  const int ranks = plan.mesh.ranks();
  std::string text = storage::mesh_text(plan.mesh) + ": " + counted(ranks, "rank") + ", " +
                     counted(plan.most_layers, "layer") + " a rank at most";
  if (plan.mesh.pipeline > 1) {
    text += "; idle " + number_text(kPercent * plan.idle, 2) +
            " % of the time (the pipeline fills and drains)";
  }
  std::string sent;
  if (plan.bytes_per_step > 0) sent = bytes_text(plan.bytes_per_step) + " between stages";
  if (plan.gradient_bytes_per_step > 0)
    sent +=
        (sent.empty() ? "" : " and ") + bytes_text(plan.gradient_bytes_per_step) + " of gradients";
  return sent.empty() ? text : text + "; " + sent + " a step";
}

// Why the stages of a pipeline wait, and what would help; empty where they have enough to do.
std::string mesh_remedy(const MeshPlan& plan, const storage::FinetuneSection& finetune) {
  const int least = least_micro_batches(plan.mesh);
  if (plan.micro_batches >= least) return "";
  const int sequences = plan.mesh.data * least * finetune.sequences_per_micro_batch;
  const std::int64_t visited = std::int64_t{finetune.max_steps} * finetune.sequences_per_step;
  return "a pipeline of " + std::to_string(plan.mesh.pipeline) + " stages has " +
         std::to_string(plan.micro_batches) +
         (plan.micro_batches == 1 ? " micro-batch" : " micro-batches") +
         " a step, so its stages wait for one another; finetune.sequences_per_step = " +
         std::to_string(sequences) + " gives it " + std::to_string(least) + ", in " +
         std::to_string((visited + sequences - 1) / sequences) + " steps in place of " +
         std::to_string(finetune.max_steps) + " for the same text";
}

std::string lora_speed_text(const MeshPlan& plan) {
  return std::to_string(std::llround(plan.tokens_per_second)) +
         " tokens a second and GPU, as assumed; at the 176 TFLOP/s that NVIDIA published for LoRA "
         "on a 70B model on H100 they would be " +
         std::to_string(std::llround(plan.published_tokens_per_second));
}

// GPU-hours and money have a column where there is any.
void print_stages(const Plan& plan, Terminal& terminal) {
  Table table;
  table.column("stage", 9)
      .column("memory", 8, true)
      .column("disk", 6, true)
      .column("time", 7, true);
  const bool has_gpus = plan.gpu_hours() > 0, has_cost = plan.cost() > 0;
  if (has_gpus) table.column("GPU-hours", 5, true);
  if (has_cost) table.column("cost", 4, true);
  for (const StageEstimate& stage : plan.estimates) {
    if (stage.stage == Stage::kCapture && !plan.captures) continue;
    std::vector<std::string> cells{word_of(stage.stage),
                                   stage.memory_bytes > 0 ? bytes_text(stage.memory_bytes) : "-",
                                   stage.disk_bytes > 0 ? bytes_text(stage.disk_bytes) : "-",
                                   stage.seconds > 0 ? duration_text(stage.seconds) : "-"};
    if (has_gpus) cells.push_back(number_text(stage.gpu_hours, 3));
    if (has_cost) cells.push_back(money_text(stage.cost));
    table.row(std::move(cells));
  }
  for (const std::string& row : table.render(terminal.answer_width())) terminal.print(row);
}

void print_choices(const std::vector<KChoice>& choices, int chosen, Terminal& terminal) {
  Table table;
  table.column("k", 9, true)
      .column("blocks", 8, true)
      .column("memory", 7, true)
      .column("disk", 6, true)
      .column("time", 5, true);
  const bool has_gpus = choices.front().gpu_hours > 0, has_cost = choices.front().cost > 0;
  if (has_gpus) table.column("GPU-hours", 4, true);
  if (has_cost) table.column("cost", 3, true);
  table.column("", 2);
  // Problems that every k has are not k's.
  int fewest = choices.front().num_problems;
  for (const KChoice& choice : choices) fewest = std::min(fewest, choice.num_problems);
  for (const KChoice& choice : choices) {
    const bool is_own = choice.layers_per_block == chosen;
    const bool fits = choice.num_problems == fewest;
    std::vector<std::string> cells{std::to_string(choice.layers_per_block),
                                   std::to_string(choice.num_blocks),
                                   bytes_text(choice.memory_bytes),
                                   bytes_text(choice.peak_disk_bytes),
                                   choice.seconds > 0 ? duration_text(choice.seconds) : "-"};
    if (has_gpus) cells.push_back(number_text(choice.gpu_hours, 3));
    if (has_cost) cells.push_back(money_text(choice.cost));
    cells.push_back(std::string(fits ? "" : "does not fit") + (is_own && !fits ? ", " : "") +
                    (is_own ? "the recipe's" : ""));
    table.row(std::move(cells));
  }
  for (const std::string& row : table.render(terminal.answer_width())) terminal.print(row);
}

// Two of several courses that failures may take: the middle one, and the longest.
struct Simulated {
  Simulation typical, worst;
  int courses = 1;
};

Simulated simulate_plan(const storage::Recipe& recipe, const PlanFor& planned, const Plan& plan) {
  const bool fails = std::any_of(plan.workers.begin(), plan.workers.end(), [](const auto& kind) {
    return kind.mtbf_hours > 0;
  });
  constexpr int kCourses = 11;
  std::vector<Simulation> courses;
  for (int seed = 0; seed < (fails ? kCourses : 1); ++seed)
    courses.push_back(simulated(recipe, planned, static_cast<std::uint64_t>(seed)));
  std::sort(courses.begin(), courses.end(), [](const Simulation& a, const Simulation& b) {
    return a.makespan_seconds < b.makespan_seconds;
  });
  return {courses[courses.size() / 2], courses.back(), static_cast<int>(courses.size())};
}

std::string simulated_text(const Simulated& simulated, const Plan& plan) {
  const Simulation& typical = simulated.typical;
  if (!typical.finished) return "it does not end: " + typical.problem;
  constexpr double kPercent = 100.0;
  std::string text = duration_text(typical.makespan_seconds) + " from first to last, " +
                     number_text(kPercent * typical.utilization, 3) +
                     " % of the workers' time used";
  if (typical.gpu_hours_held > 0) {
    text += "; GPU-hours: " + number_text(typical.gpu_hours_held, 3) + " held, " +
            number_text(typical.gpu_hours_useful, 3) + " useful, " +
            number_text(typical.gpu_hours_lost, 3) + " done twice";
  }
  double price = 0.0;
  for (const WorkerKind& kind : plan.workers) price += kind.nodes * kind.price_per_hour;
  constexpr double kSecondsPerHour = 3600.0;
  if (price > 0) text += "; cost " + money_text(price * typical.makespan_seconds / kSecondsPerHour);
  if (simulated.courses > 1) {
    text += "; " + counted(typical.failures, "node") + " failed; the middle of " +
            std::to_string(simulated.courses) + " courses, the longest took " +
            duration_text(simulated.worst.makespan_seconds);
  }
  return text;
}

void print_plan(const Plan& plan,
                const std::optional<UnreadText>& unread,
                const std::vector<KChoice>& choices,
                int layers_per_block,
                const storage::FinetuneSection& finetune,
                const std::optional<Simulated>& course,
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
  for (const WorkerKind& kind : plan.workers) line("workers", workers_text(kind));
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
  if (plan.host_memory_bytes > 0)
    memory += "; of the host " + bytes_text(plan.host_memory_bytes) +
              " each; assumed, nothing was measured on a GPU";
  line("memory",
       memory + (plan.workers.empty() ? "; each worker is asked for its own when it joins" : ""));
  std::string state = bytes_text(static_cast<std::uint64_t>(plan.state_bytes)) +
                      " a sequence in generation, whatever its length";
  if (plan.state_bytes_per_token > 0)
    state += ", and " + bytes_text(static_cast<std::uint64_t>(plan.state_bytes_per_token)) +
             " a token of the layers that keep softmax";
  if (plan.equal_window > 0)
    state += "; an untrained window of " + std::to_string(plan.equal_window) +
             " tokens has as much a layer";
  line("state", state);
  if (plan.finetunes && plan.mesh.mesh.ranks() > 1) line("lora", mesh_text(plan.mesh));
  if (const std::string remedy = mesh_remedy(plan.mesh, finetune);
      plan.finetunes && !remedy.empty())
    line("", remedy);
  if (plan.finetunes && plan.mesh.tokens_per_second > 0) line("", lora_speed_text(plan.mesh));
  line("time", time_text(plan));
  print_stages(plan, terminal);
  if (choices.size() > 1) print_choices(choices, layers_per_block, terminal);
  if (course) line("simulated", simulated_text(*course, plan));
  for (const std::string& warning : plan.warnings) line("warning", warning);
  for (const PlanProblem& problem : plan.problems)
    line("problem", problem.message + "; " + problem.remedy);
  const char* fits = plan.workers.empty()
                         ? "nothing speaks against it; memory is judged once the workers are known"
                     : unread ? "model, memory and disk: it fits"
                              : "it fits";
  terminal.print(!plan.fits() ? "it does not fit"
                              : std::string(fits) + (unread ? "; the text was not read" : ""));
}

nlohmann::json json_of(const Simulation& simulation) {
  nlohmann::json stages = nlohmann::json::array();
  for (const SimulatedStage& stage : simulation.stages) {
    stages.push_back({{"stage", stage.stage},
                      {"first_start", stage.first_start},
                      {"last_end", stage.last_end},
                      {"busy_worker_seconds", stage.busy_worker_seconds},
                      {"lost_worker_seconds", stage.lost_worker_seconds},
                      {"tasks", stage.tasks}});
  }
  return {{"makespan_seconds", simulation.makespan_seconds},
          {"utilization", simulation.utilization},
          {"gpu_hours_held", simulation.gpu_hours_held},
          {"gpu_hours_useful", simulation.gpu_hours_useful},
          {"gpu_hours_lost", simulation.gpu_hours_lost},
          {"failures", simulation.failures},
          {"finished", simulation.finished},
          {"problem", simulation.problem},
          {"stages", std::move(stages)}};
}

nlohmann::json json_of(const std::vector<KChoice>& choices) {
  nlohmann::json list = nlohmann::json::array();
  for (const KChoice& choice : choices) {
    list.push_back({{"layers_per_block", choice.layers_per_block},
                    {"num_blocks", choice.num_blocks},
                    {"memory_bytes", choice.memory_bytes},
                    {"peak_disk_bytes", choice.peak_disk_bytes},
                    {"seconds", choice.seconds},
                    {"gpu_hours", choice.gpu_hours},
                    {"cost", choice.cost},
                    {"fits", choice.num_problems == 0}});
  }
  return list;
}

// This machine counts where no cluster file names others.
storage::Recipe planned_recipe(const PlanOptions& options, const storage::RunLayout& layout) {
  if (options.recipe.empty()) return recipe_of_run(layout);
  const bool computes_here =
      options.cluster.empty() && !fs::exists(layout.cluster()) && options.workers != 0;
  return computes_here ? load_for_this_machine(options.recipe, options.device, options.workers)
                       : storage::Recipe::load(options.recipe);
}

ExitCode run_plan(const PlanOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  const fs::path recorded = layout.recipe();
  require(!options.recipe.empty() || fs::exists(recorded),
          options.run + " holds no run.toml; give --recipe FILE, or --run DIR of a run");
  require(options.device.empty() || !options.recipe.empty(),
          "--device goes with --recipe FILE; a run keeps the device that it was begun with");
  storage::Recipe recipe = planned_recipe(options, layout);
  require(options.model.empty() || !options.recipe.empty(),
          "--model goes with --recipe FILE; a run keeps the model that it was begun with");
  if (!options.device.empty()) recipe.plan.device = options.device;
  if (!options.model.empty()) recipe.model.path = options.model;
  // A run's own cluster file, where it has one.
  const std::string cluster = options.cluster.empty() && fs::exists(layout.cluster())
                                  ? layout.cluster().string()
                                  : options.cluster;
  PlanFor planned = plan_for(recipe, options.run, cluster, options.workers);
  planned.before_download = true;
  if (!has_weights(recipe) && !options.workers) planned.local_workers = 0;  // they are elsewhere
  resolve(recipe, planned);
  Plan plan = plan_of(recipe, planned);
  const std::vector<KChoice> choices = choices_of(recipe, planned);
  const std::optional<UnreadText> text = unread_text(recipe, options.run);
  if (text) {
    if (auto problem = text_problem(*text, recipe.data_transfer))
      plan.problems.push_back(std::move(*problem));
  }
  // Refused by run; a plan is often made before the directory with its keys is.
  const std::string run = options.run == "." && !fs::exists(recorded) ? "DIR" : options.run;
  if (auto problem = missing_keys(recipe.workers.bind, wire::has_keys(layout), run))
    plan.warnings.push_back(std::move(*problem));
  std::optional<Simulated> course;
  if (options.simulate) course = simulate_plan(recipe, planned, plan);
  print_plan(plan, text, choices, recipe.plan.layers_per_block, recipe.finetune, course, terminal);
  nlohmann::json answer = plan;
  answer["layers_per_block"] = recipe.plan.layers_per_block;
  answer["keep_boundaries"] = recipe.plan.keep_boundaries;
  answer["choices"] = json_of(choices);
  if (course) {
    answer["simulation"] = json_of(course->typical);
    answer["simulation"]["longest_makespan_seconds"] = course->worst.makespan_seconds;
  }
  if (text) answer["unread_text"] = {{"bytes", text->bytes}, {"sequences", text->rough_sequences}};
  terminal.print_json(answer);
  return plan.fits() ? ExitCode::kOk : ExitCode::kUsage;
}

}  // namespace

RunCommand declare_plan(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  app.add_option("--recipe", options->recipe, "the recipe; without it the run's own")
      ->type_name("FILE");
  app.add_option("--model",
                 options->model,
                 "a directory or org/name in place of the recipe's model.path; its config.json "
                 "will do")
      ->type_name("DIR");
  one_of(app.add_option(
             "--device", options->device, "where to compute, in place of the recipe's plan.device"),
         {"auto", "cpu", "cuda"});
  app.add_option("--cluster",
                 options->cluster,
                 "the machines that will compute, in place of this one; deploy/clusters has some")
      ->type_name("FILE");
  app.add_flag(
      "--simulate",
      options->simulate,
      "drive the run in virtual time, with the scheduler of a real one and failures at the "
      "cluster file's rate");
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
