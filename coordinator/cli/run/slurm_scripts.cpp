#include "coordinator/cli/run/slurm_scripts.hpp"

#include <algorithm>
#include <filesystem>

#include "coordinator/cli/run/slurm_shell.hpp"  // made of deploy/slurm/*.sh by CMakeLists.txt
#include "storage/base/error.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::Cluster;
using storage::RunLayout;
using storage::SlurmSection;
using storage::SlurmShape;

// How long a worker of an array looks for a coordinator before it asks Slurm whether there will be
// one.
constexpr int kWorkerWaitSeconds = 60;
// How long ranks wait for the stage that asked for them: a coordinator may have to start anew.
constexpr int kRanksWaitSeconds = 600;
constexpr const char* kRanksFile = "ranks.sh";

const std::string& first_of(const std::string& a, const std::string& b) {
  return a.empty() ? b : a;
}

// [finetune], with what it leaves out from [workers]; as many nodes as its ranks need.
SlurmShape finetune_shape(const SlurmJob& job) {
  const SlurmShape& workers = job.cluster.workers;
  SlurmShape shape = job.cluster.finetune;
  if (shape.tasks_per_node == 0) shape.tasks_per_node = std::max(1, workers.tasks_per_node);
  if (shape.nodes == 0) shape.nodes = (job.ranks + shape.tasks_per_node - 1) / shape.tasks_per_node;
  if (shape.gpus_per_task == 0 && shape.gres.empty()) {
    shape.gpus_per_task = workers.gpus_per_task;
    shape.gres = workers.gres;
  }
  if (shape.cpus_per_task == 0) shape.cpus_per_task = workers.cpus_per_task;
  shape.memory = first_of(shape.memory, workers.memory);
  shape.partition = first_of(shape.partition, workers.partition);
  shape.qos = first_of(shape.qos, workers.qos);
  shape.time = first_of(shape.time, workers.time);
  if (shape.srun.empty()) shape.srun = workers.srun;
  return shape;
}

class Directives {
 public:
  void option(const std::string& name, const std::string& value) {
    if (!value.empty()) text_ += "#SBATCH --" + name + "=" + shell_word(value) + "\n";
  }
  void number(const std::string& name, int value) {
    if (value > 0) option(name, std::to_string(value));
  }
  void line(const std::string& text) { text_ += "#SBATCH " + text + "\n"; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void ask_for_devices(const SlurmShape& shape, Directives& ask) {
  ask.option("gres", shape.gres);
  // GPUs of the node and not of a task: mpirun's own daemons are steps of one task a node, and
  // would see a single GPU.
  ask.number("gpus-per-node", shape.gpus_per_task * std::max(1, shape.tasks_per_node));
}

// A path in which Slurm finds no pattern of its own, as %j.
std::string without_patterns(std::string path) {
  for (std::size_t at = 0; (at = path.find('%', at)) != std::string::npos; at += 2)
    path.insert(at, "%");
  return path;
}

// Everything above the first command. `log` may hold Slurm's patterns.
std::string head(const SlurmJob& job,
                 const SlurmShape& shape,
                 SlurmRole role,
                 const std::string& log) {
  const SlurmSection& slurm = job.cluster.slurm;
  Directives ask;
  ask.option("job-name", job.name + "-" + std::string(to_string(role)));
  ask.option("output", without_patterns(RunLayout(job.run).slurm_directory().string()) + "/" + log);
  ask.line("--open-mode=append");  // a round goes on in the log of the one before
  ask.line("--requeue");
  ask.option("signal", "B:USR1@" + std::to_string(slurm.signal_seconds));
  ask.option("time", first_of(shape.time, slurm.time));
  ask.option("partition", first_of(shape.partition, slurm.partition));
  ask.option("account", slurm.account);
  ask.option("qos", first_of(shape.qos, slurm.qos));
  ask.number("nodes", std::max(1, shape.nodes));
  ask.number("ntasks-per-node", std::max(1, shape.tasks_per_node));
  ask.number("cpus-per-task", shape.cpus_per_task);
  ask.option("mem", shape.memory);
  ask_for_devices(shape, ask);
  for (const auto* options : {&slurm.sbatch, &shape.sbatch}) {
    for (const std::string& option : *options) ask.line(option);
  }
  return "#!/bin/bash\n# Written by 'hedgerow submit --slurm', which writes it anew each time.\n" +
         ask.text();
}

bool has_image(const SlurmJob& job) { return !job.cluster.slurm.container.empty(); }

// The words before a command of ours that let it run in the image; empty: there is none.
std::string inside(const SlurmJob& job) {
  if (!has_image(job)) return "";
  std::string words = "apptainer exec ";
  if (job.cluster.has_gpus().value_or(false)) words += "--nv ";
  for (const std::string& folder : job.binds) words += "--bind " + shell_word(folder) + " ";
  return words + shell_word(job.cluster.slurm.container) + " ";
}

// Variables, modules, the cluster's own lines and the image; then deploy/slurm/job.sh with the
// values that it reads, and `more`, those of what follows it.
std::string begin(const SlurmJob& job, const std::string& more) {
  std::string text = "run=" + shell_word(job.run) + "\nhedgerow=" + shell_word(job.hedgerow) + "\n";
  for (const std::string& module : job.cluster.slurm.modules)
    text += "module load " + shell_word(module) + "\n";
  for (const std::string& line : job.cluster.slurm.prologue) text += line + "\n";
  return text + "inside=(" + inside(job) + ")\nimage=" + shell_word(job.cluster.slurm.container) +
         "\nmax_requeues=" + std::to_string(job.cluster.slurm.max_requeues) + "\n" + more + kJob;
}

// The words of srun that start one worker a task.
std::string srun_words(const SlurmShape& shape) {
  // A worker that dies takes no other with it.
  std::string words = "srun --kill-on-bad-exit=0 --wait=0";
  // From Slurm 22.05 on, steps do not take this over from the job.
  if (shape.cpus_per_task > 0) words += " --cpus-per-task=" + std::to_string(shape.cpus_per_task);
  if (shape.gpus_per_task > 0) words += " --gpus-per-task=" + std::to_string(shape.gpus_per_task);
  for (const std::string& option : shape.srun) words += " " + shell_word(option);
  return words;
}

// What `hedgerow run` starts whenever it wants workers, and waits for before it needs the nodes.
SlurmScript launcher(const SlurmJob& job, const SlurmShape& shape, const std::string& file) {
  return {
      SlurmRole::kLauncher,
      file,
      "#!/bin/bash\n# Written by 'hedgerow submit --slurm'. One worker a task of the allocation.\n"
      "exec " +
          srun_words(shape) + " --open-mode=append --output=" +
          shell_word(without_patterns(RunLayout(job.run).logs().string()) +
                     "/worker-%N-%j.%t.log") +
          " \\\n  " + inside(job) + shell_word(job.hedgerow) + " worker --run " +
          shell_word(job.run) + " --wait " + std::to_string(kWorkerWaitSeconds) + "\n"};
}

// With an image: what the batch step starts for the run's finetune stage, as MpirunStage does
// without.
SlurmScript ranks_launcher(const SlurmJob& job, const SlurmShape& shape) {
  const std::filesystem::path worker =
      std::filesystem::path(job.hedgerow).parent_path() / "hedgerow-worker";
  return {
      SlurmRole::kLauncher,
      kRanksFile,
      "#!/bin/bash\n# Written by 'hedgerow submit --slurm'. The ranks of the finetune stage, each "
      "in a container of its own.\nrun=" +
          shell_word(job.run) + "\ninside=(" + inside(job) +
          ")\nworker=" + shell_word(worker.string()) + "\nranks=" + std::to_string(job.ranks) +
          "\nwait_s=" + std::to_string(kRanksWaitSeconds) + "\nacross_nodes=(" +
          (shape.nodes > 1 ? "--mca odls_base_sigkill_timeout 3" : "") + ")\n" + kRanks};
}

// A job whose batch step is the coordinator.
SlurmScript coordinating(const SlurmJob& job,
                         SlurmRole role,
                         const SlurmShape& shape,
                         const std::string& launcher_file) {
  const std::string name(to_string(role));
  const std::string folder = "\"$run/" + std::string(RunLayout::kSlurm) + "/";
  const bool finetunes = !job.finetunes_apart || role == SlurmRole::kFinetune;
  const bool tends = has_image(job) && (finetunes || !launcher_file.empty());
  std::string values = "arguments=(run --run \"$run\" --workers 0";
  if (!tends && !launcher_file.empty())
    values += " --worker-launcher " + folder + launcher_file + "\"";
  if (job.finetunes_apart && role != SlurmRole::kFinetune) values += " --stop-before finetune";
  values += ")\nrecipe=(";
  if (role != SlurmRole::kFinetune) {
    values += "--recipe " + folder + kSlurmRecipe + "\"";
    if (!job.cluster.nodes.empty()) values += " --cluster " + folder + kSlurmCluster + "\"";
  }
  values += ")\n";
  if (tends)
    values += "workers=" + launcher_file + "\nranks=" + (finetunes ? kRanksFile : "") + "\n";
  return {role,
          name + ".sbatch",
          head(job, shape, role, name + "-%j.log") + begin(job, values) + (tends ? kTend : "") +
              kCoordinate};
}

// One task of the array: workers that come and go.
SlurmScript array_worker(const SlurmJob& job) {
  SlurmShape shape = job.cluster.workers;
  shape.nodes = 1;
  return {SlurmRole::kWorker,
          "worker.sbatch",
          head(job, shape, SlurmRole::kWorker, "worker-%A_%a.log") + "#SBATCH --array=0-" +
              std::to_string(job.array_tasks - 1) + "\n" +
              begin(job,
                    "srun=(" + srun_words(shape) + ")\nwait_s=" +
                        std::to_string(kWorkerWaitSeconds) + "\ncoordinator_job=\"$run/" +
                        RunLayout::kSlurm + "/" + kCoordinatorJob + "\"\n") +
              kArrayWorker};
}

void check_ranks(const SlurmJob& job, const SlurmShape& shape, const std::string& section) {
  const int tasks = std::max(1, shape.nodes) * std::max(1, shape.tasks_per_node);
  if (job.ranks <= tasks) return;
  throw storage::Error(storage::ErrorKind::kUsage,
                       "finetune.ranks = " + std::to_string(job.ranks) +
                           " of the recipe, but the job has " + std::to_string(tasks) +
                           (tasks == 1 ? " task" : " tasks") +
                           " (nodes x tasks_per_node); ask for more with --nodes or in [" +
                           section + "] of a cluster file, or lower finetune.ranks");
}

}  // namespace

std::string shell_word(std::string_view text) {
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

std::string_view to_string(SlurmRole role) {
  switch (role) {
    case SlurmRole::kRun:
      return "run";
    case SlurmRole::kCoordinator:
      return "coordinator";
    case SlurmRole::kWorker:
      return "worker";
    case SlurmRole::kFinetune:
      return "finetune";
    case SlurmRole::kLauncher:
      break;
  }
  return "launcher";
}

std::vector<SlurmScript> slurm_scripts(const SlurmJob& job) {
  std::vector<SlurmScript> scripts;
  if (job.array_tasks > 0) {
    SlurmShape shape = job.cluster.coordinator;
    shape.nodes = shape.tasks_per_node = 1;
    if (!job.finetunes_apart) check_ranks(job, shape, "coordinator");
    if (!job.finetunes_apart && has_image(job)) scripts.push_back(ranks_launcher(job, shape));
    // The last evaluation follows the finetune stage; the array is there for it too.
    scripts.push_back(coordinating(job, SlurmRole::kCoordinator, shape, ""));
    scripts.push_back(array_worker(job));
  } else {
    const SlurmShape& shape = job.cluster.workers;
    if (!job.finetunes_apart) check_ranks(job, shape, "workers");
    scripts.push_back(coordinating(job, SlurmRole::kRun, shape, "workers.sh"));
    scripts.push_back(launcher(job, shape, "workers.sh"));
    if (!job.finetunes_apart && has_image(job)) scripts.push_back(ranks_launcher(job, shape));
  }
  if (job.finetunes_apart) {
    const SlurmShape shape = finetune_shape(job);
    check_ranks(job, shape, "finetune");
    scripts.push_back(coordinating(job, SlurmRole::kFinetune, shape, "finetune-workers.sh"));
    scripts.push_back(launcher(job, shape, "finetune-workers.sh"));
    if (has_image(job)) scripts.push_back(ranks_launcher(job, shape));
  }
  return scripts;
}

}  // namespace hedgerow::coordinator::cli
