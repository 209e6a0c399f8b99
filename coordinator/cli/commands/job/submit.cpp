#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/run/planning.hpp"
#include "coordinator/cli/run/slurm_container.hpp"
#include "coordinator/cli/run/slurm_scripts.hpp"
#include "coordinator/cli/run/tokenizing.hpp"
#include "coordinator/net/binding.hpp"
#include "coordinator/net/key_maker.hpp"
#include "coordinator/plan/measured_nodes.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "storage/files/file.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::Cluster;
using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;
using storage::Recipe;
using storage::RunLayout;

struct SubmitOptions {
  std::string run, recipe, cluster;
  int nodes = 0, array = 0;
  bool slurm = false, dry_run = false;
};

void validate(const SubmitOptions& options) {
  require(options.slurm, "missing: --slurm (the one batch system that is known)");
  require(!options.run.empty(),
          "missing: --run DIR (the run directory, on a file system that all nodes share)");
  require(options.nodes == 0 || options.array == 0,
          "--nodes " + std::to_string(options.nodes) + " and --array " +
              std::to_string(options.array) +
              " exclude each other: a run has one allocation of nodes, or an array of workers");
}

// Slurm reads file names with patterns and escapes of its own.
void check_path(const std::string& run) {
  require(run.find_first_of("\n\r\\") == std::string::npos,
          "--run " + run +
              ": a path with a line break or a backslash cannot stand in a job script; choose "
              "another directory");
}

fs::path folder_of(const RunLayout& layout) { return layout.resolve(RunLayout::kSlurm); }

// The run's recipe as the nodes will get it: the one that is asked for, else the run's own.
Recipe asked_recipe(const SubmitOptions& options, const RunLayout& layout) {
  const bool is_new = !fs::exists(layout.recipe());
  require(!is_new || !options.recipe.empty(),
          options.run + " is no run directory yet; give --recipe FILE to start one there");
  return options.recipe.empty() ? recipe_of_run(layout) : Recipe::load(options.recipe);
}

// What the allocation decides and the recipe leaves open.
void fit_to_cluster(Recipe& recipe, const Cluster& cluster) {
  if (recipe.workers.threads == 0) recipe.workers.threads = cluster.workers.cpus_per_task;
  if (recipe.finetune.threads == 0) {
    recipe.finetune.threads = cluster.finetune.cpus_per_task > 0 ? cluster.finetune.cpus_per_task
                                                                 : cluster.workers.cpus_per_task;
  }
  // The job script starts the ranks: a coordinator in an image cannot.
  if (!cluster.slurm.container.empty()) recipe.finetune.launch = "elsewhere";
}

// The part of the cluster that the job asks for. Of several kinds of nodes Slurm takes which it
// will, so none is left out.
Cluster allocated(const SlurmJob& job) {
  Cluster part = job.cluster;
  const int nodes = job.array_tasks > 0 ? job.array_tasks : part.workers.nodes;
  if (part.nodes.size() == 1) part.nodes.front().count = std::min(part.nodes.front().count, nodes);
  return part;
}

// Workers of other nodes need an address that they reach, and the coordinator then needs keys:
// those that are missing are made.
void prepare_connections(const RunLayout& layout, Recipe& recipe, const SlurmJob& job) {
  const bool has_one_node = job.array_tasks == 0 && job.cluster.workers.nodes <= 1 &&
                            (!job.finetunes_apart || job.cluster.finetune.nodes <= 1);
  if (!job.cluster.slurm.bind.empty()) {
    recipe.workers.bind = job.cluster.slurm.bind;
  } else if (!has_one_node && is_loopback(recipe.workers.bind)) {
    recipe.workers.bind = "*";
  }
  if (!is_loopback(recipe.workers.bind))
    std::ignore = make_keys(layout, {.workers = {wire::kDefaultWorkerKey}});
}

SlurmJob job_of(const SubmitOptions& options, const RunLayout& layout, const Recipe& recipe) {
  SlurmJob job;
  if (!options.cluster.empty()) job.cluster = load_cluster(options.cluster);
  if (options.nodes > 0) job.cluster.workers.nodes = options.nodes;
  job.run = layout.root().string();
  job.name = "hedgerow-" + layout.root().filename().string();
  const storage::SlurmSection& slurm = job.cluster.slurm;
  job.hedgerow = slurm.hedgerow.empty() ? own_binary().string() : slurm.hedgerow;
  if (!slurm.container.empty()) {
    require_image(slurm.container, options.cluster);
    job.binds = folders_to_bind(layout.root(), recipe);
    if (slurm.hedgerow.empty()) job.hedgerow = "hedgerow";
  }
  job.array_tasks = options.array;
  job.ranks = recipe.finetune.enabled ? recipe.finetune.ranks : 1;
  const std::string& allocation = job.cluster.finetune_allocation;
  job.finetunes_apart = recipe.finetune.enabled &&
                        (allocation == "own" || (allocation == "auto" && options.array > 0));
  return job;
}

// Refuses what would be refused on the node, hours later. False: there is nothing left to do.
bool check_run(const SubmitOptions& options, const RunLayout& layout) {
  if (!fs::exists(layout.recipe())) {
    require(!fs::exists(layout.root()) || fs::is_directory(layout.root()),
            options.run + " is a file; name a new directory with --run");
    return true;
  }
  const RunStatus status = read_status(layout);
  require(status.state != "running" && status.state != "preparing",
          options.run + " is at work on " + status.host + " (pid " + std::to_string(status.pid) +
              "); 'hedgerow watch' shows it, 'hedgerow stop' ends it");
  return status.state != "done";
}

fs::path program(const std::string& name, Terminal& terminal) {
  std::istringstream path(terminal.console().environment("PATH").value_or(""));
  for (std::string directory; std::getline(path, directory, ':');) {
    std::error_code ignored;
    if (const fs::path found = fs::path(directory) / name; fs::exists(found, ignored)) return found;
  }
  throw Error(ErrorKind::kUnavailable,
              name +
                  " is not in PATH; submit from a login node of a Slurm cluster, or look at the "
                  "scripts with --dry-run");
}

struct Submitted {
  SlurmRole role;
  std::string job;
};

// sbatch's answer: "123", or "123;cluster".
std::string submit_script(const fs::path& sbatch,
                          const fs::path& script,
                          const std::vector<std::string>& more,
                          Terminal& terminal) {
  ChildCommand command{.arguments = {sbatch.string(), "--parsable"}};
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  command.arguments.push_back(script.string());
  std::string answer;
  const ChildResult result =
      run_child(command, terminal, [&answer](std::string_view line) { answer = line; });
  answer = answer.substr(0, answer.find(';'));
  const bool is_number =
      !answer.empty() && answer.find_first_not_of("0123456789") == std::string::npos;
  if (result.ok() && is_number) return answer;
  std::string why =
      result.stderr_tail.empty() ? "it answered '" + answer + "'" : result.stderr_tail;
  while (!why.empty() && why.back() == '\n') why.pop_back();
  const auto says = [&why](const char* text) { return why.find(text) != std::string::npos; };
  if (says("Unable to contact slurm controller") || says("Could not establish a configuration")) {
    throw Error(ErrorKind::kUnavailable,
                "the Slurm controller does not answer, and nothing was submitted: " + why +
                    "; submit again when 'sinfo' shows the cluster");
  }
  throw Error(ErrorKind::kUsage,
              "sbatch refused " + script.string() + ": " + why +
                  "; correct the cluster file or the options, or look at the script");
}

// All or none: half a run would wait for the rest for ever.
std::vector<Submitted> submit_all(const std::vector<SlurmScript>& scripts,
                                  const fs::path& folder,
                                  Terminal& terminal) {
  const fs::path sbatch = program("sbatch", terminal);
  std::vector<Submitted> submitted;
  try {
    for (const SlurmScript& script : scripts) {
      if (script.role == SlurmRole::kLauncher) continue;
      std::vector<std::string> more;
      // Workers have nothing to do before the coordinator begins, the finetune stage before it has
      // ended well; should it fail, the stage is not left waiting for ever.
      if (script.role == SlurmRole::kWorker) more = {"--dependency=after:" + submitted.front().job};
      if (script.role == SlurmRole::kFinetune)
        more = {"--dependency=afterok:" + submitted.front().job, "--kill-on-invalid-dep=yes"};
      submitted.push_back(
          {script.role, submit_script(sbatch, folder / script.file, more, terminal)});
      if (submitted.size() == 1)
        storage::write_atomically(folder / kCoordinatorJob, submitted.front().job + "\n");
    }
  } catch (const Error&) {
    if (!submitted.empty()) {
      ChildCommand cancel{.arguments = {program("scancel", terminal).string()}};
      for (const Submitted& job : submitted) cancel.arguments.push_back(job.job);
      run_child(cancel, terminal, [](std::string_view) {});
    }
    throw;
  }
  return submitted;
}

void write_scripts(const std::vector<SlurmScript>& scripts,
                   const Recipe& recipe,
                   const std::string& cluster,
                   const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw storage::system_error("make the directory", folder.string(), error.value());
  storage::write_atomically(folder / kSlurmRecipe, recipe.to_toml());
  if (!cluster.empty()) copy_cluster(cluster, folder / kSlurmCluster);
  constexpr int kExecutable = 0755;
  for (const SlurmScript& script : scripts)
    storage::write_atomically(folder / script.file, script.text, kExecutable);
}

nlohmann::json json_of(const std::vector<SlurmScript>& scripts,
                       const fs::path& folder,
                       bool with_text) {
  nlohmann::json list = nlohmann::json::array();
  for (const SlurmScript& script : scripts) {
    list.push_back({{"role", to_string(script.role)}, {"file", (folder / script.file).string()}});
    if (with_text) list.back()["text"] = script.text;
  }
  return list;
}

// On this machine, while no node is paid for. False: interrupted.
bool tokenize_before(const RunLayout& layout, const Recipe& recipe, Terminal& terminal) {
  if (!fs::exists(layout.recipe()))
    remove_tokens(layout);  // of an earlier try, perhaps other texts
  try {
    return tokenize_missing(layout, recipe, terminal);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnavailable) throw;
    terminal.warn("the job will tokenize while its nodes wait: " + std::string(error.what()));
  }
  return true;
}

ExitCode run_submit(const SubmitOptions& options, Terminal& terminal) {
  validate(options);
  const RunLayout layout(fs::absolute(options.run).lexically_normal());
  check_path(layout.root().string());
  if (!check_run(options, layout)) {
    terminal.print(options.run + ": everything is done already");
    terminal.print_json({{"run", options.run}, {"jobs", nlohmann::json::array()}});
    return ExitCode::kOk;
  }
  Recipe recipe = asked_recipe(options, layout);
  const SlurmJob job = job_of(options, layout, recipe);
  const std::vector<SlurmScript> scripts = slurm_scripts(job);
  const fs::path folder = folder_of(layout);
  if (options.dry_run) {
    for (const SlurmScript& script : scripts)
      terminal.print("# " + (folder / script.file).string() + "\n" + script.text);
    terminal.print_json(
        {{"run", options.run}, {"dry_run", true}, {"scripts", json_of(scripts, folder, true)}});
    return ExitCode::kOk;
  }
  fit_to_cluster(recipe, job.cluster);
  if (!job.cluster.nodes.empty()) {
    const PlanFor planned{.directory = layout.root(), .cluster = allocated(job), .is_there = true};
    if (!fs::exists(layout.recipe())) resolve(recipe, planned);
    require_fits(plan_of(recipe, planned));
  }
  std::ignore = program("sbatch", terminal);  // before anything is written
  prepare_connections(layout, recipe, job);
  write_scripts(scripts, recipe, job.cluster.nodes.empty() ? "" : options.cluster, folder);
  if (!tokenize_before(layout, recipe, terminal)) {
    terminal.say("interrupted; nothing was submitted");
    return ExitCode::kInterrupted;
  }
  const std::vector<Submitted> jobs = submit_all(scripts, folder, terminal);
  nlohmann::json list = nlohmann::json::array();
  for (const Submitted& submitted : jobs) {
    const std::string role(to_string(submitted.role));
    terminal.print("job " + submitted.job + ": " + role);
    list.push_back({{"role", role}, {"job", submitted.job}});
  }
  terminal.print_json(
      {{"run", options.run}, {"jobs", list}, {"scripts", json_of(scripts, folder, false)}});
  terminal.say("'hedgerow watch --run " + options.run +
               "' shows it once it runs, 'hedgerow stop --run " + options.run +
               "' ends it; logs are in " + folder.string());
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_submit(CLI::App& app) {
  const auto options = std::make_shared<SubmitOptions>();
  add_run(app, options->run);
  app.add_flag("--slurm", options->slurm, "to Slurm, by sbatch");
  app.add_option("--recipe", options->recipe, "the recipe of a new run, or one that changed safely")
      ->type_name("FILE");
  app.add_option("--cluster",
                 options->cluster,
                 "partition, account, time, modules, GPUs, ...; without it the cluster's defaults")
      ->type_name("FILE");
  app.add_option(
         "--nodes", options->nodes, "of the run's allocation, in place of the cluster file's")
      ->type_name("N")
      ->check(CLI::Range(1, 1000000).description(""));
  app.add_option("--array",
                 options->array,
                 "in place of one allocation: a job that coordinates, and an array of N workers "
                 "that come and go")
      ->type_name("N")
      ->check(CLI::Range(1, 1000000).description(""));
  app.add_flag("--dry-run", options->dry_run, "print the job scripts, write and submit nothing");
  return [options](Terminal& terminal) {
    if (options->run.empty() && fs::exists("run.toml")) options->run = ".";
    return run_submit(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
