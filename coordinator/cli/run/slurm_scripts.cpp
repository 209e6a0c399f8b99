#include "coordinator/cli/run/slurm_scripts.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/base/run_layout.hpp"

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

// The same in a script that has @inside, behind which the program follows.
std::string inside_variable(const SlurmJob& job) {
  return has_image(job) ? "\"${inside[@]}\" " : "";
}

// What a node may lack, said before anything of ours fails by it.
constexpr const char* kImage = R"sh(inside=(@inside@)
if ! command -v apptainer > /dev/null; then
  echo "hedgerow: node $(hostname) has no apptainer; load its module (slurm.modules), or leave slurm.container out" >&2
  exit 5
fi
if [ ! -r @image@ ]; then
  echo "hedgerow: node $(hostname) does not see the image" @image@"; put it on a file system that all nodes share" >&2
  exit 5
fi
)sh";

using Words = std::vector<std::pair<std::string, std::string>>;

// The text with each @name@ replaced.
std::string filled(std::string text, const Words& words) {
  for (const auto& [name, value] : words) {
    const std::string place = "@" + name + "@";
    for (std::size_t at = 0; (at = text.find(place, at)) != std::string::npos; at += value.size())
      text.replace(at, place.size(), value);
  }
  return text;
}

// Variables, modules, the cluster's own lines and the image.
std::string begin(const SlurmJob& job) {
  std::string text = "run=" + shell_word(job.run) + "\nhedgerow=" + shell_word(job.hedgerow) + "\n";
  for (const std::string& module : job.cluster.slurm.modules)
    text += "module load " + shell_word(module) + "\n";
  for (const std::string& line : job.cluster.slurm.prologue) text += line + "\n";
  if (has_image(job)) {
    text += filled(kImage,
                   {{"image", shell_word(job.cluster.slurm.container)}, {"inside", inside(job)}});
  }
  return text;
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

constexpr const char* kRanks = R"sh(#!/bin/bash
# Written by 'hedgerow submit --slurm'. The ranks of the finetune stage, each in a container of its own.
words=()
# A job that ends says TERM to all; mpirun would kill its ranks two seconds later, in the middle of a checkpoint.
env --block-signal=TERM true 2> /dev/null && words=(env --block-signal=TERM)
# Ranks in namespaces of their own cannot copy out of each other's memory.
words+=(mpirun --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none@nodes@)
[ "$(id -u)" != 0 ] || words+=(--allow-run-as-root)
exec "${words[@]}" -n @ranks@ \
  @inside@@worker@ finetune --run @run@ --wait @wait@ >> @log@ 2>&1
)sh";

// With an image: what the batch step starts for the run's finetune stage, as MpirunStage does
// without.
SlurmScript ranks_launcher(const SlurmJob& job, const SlurmShape& shape) {
  const std::filesystem::path worker =
      std::filesystem::path(job.hedgerow).parent_path() / "hedgerow-worker";
  return {SlurmRole::kLauncher,
          kRanksFile,
          filled(kRanks,
                 {{"nodes", shape.nodes > 1 ? " --mca odls_base_sigkill_timeout 3" : ""},
                  {"ranks", std::to_string(job.ranks)},
                  {"wait", std::to_string(kRanksWaitSeconds)},
                  {"inside", inside(job)},
                  {"worker", shell_word(worker.string())},
                  {"run", shell_word(job.run)},
                  {"log", shell_word((RunLayout(job.run).logs() / "finetune.log").string())}})};
}

// Signals reach the batch shell alone. It hands them on (as SIGUSR1: srun answers SIGTERM by
// killing its tasks), remembers them, and tells the end of the command from the interruption of its
// own wait. Used by each script as `supervise COMMAND...`.
constexpr const char* kSupervise = R"sh(
told= signals=0 child=
hand_on() { told=$1 signals=$((signals + 1)); [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null; }
trap 'hand_on limit' USR1  # the wall-time limit is near, or Slurm preempts and says so
trap 'hand_on end' TERM    # Slurm ends the job: preempted, or cancelled

supervise() {  # supervise COMMAND...: its exit code is in $code
  local seen
  "$@" &
  child=$!
  [ "$signals" = 0 ] || kill -USR1 "$child"  # it came in between
  while :; do
    seen=$signals
    wait "$child"
    code=$?
    [ "$seen" = "$signals" ] && break
  done
  [ "$code" = 138 ] && code=4  # told before it could listen
  child=
}
)sh";

// Slurm counts the rounds. A cancelled job is no longer RUNNING when it gets the signal.
constexpr const char* kBackToTheQueue = R"sh(
back_to_the_queue() {
  if [ "${SLURM_RESTART_COUNT:-0}" -ge @max_requeues@ ]; then
    echo "hedgerow: requeued @max_requeues@ times, which is slurm.max_requeues; submit it again to go on" >&2
    return
  fi
  if [ "$told" = end ] && [ "$(squeue --noheader --job "$SLURM_JOB_ID" --format %T 2>/dev/null)" != RUNNING ]; then
    return
  fi
  echo "hedgerow: round $((${SLURM_RESTART_COUNT:-0} + 1)) is over, checkpointed; job $SLURM_JOB_ID goes back to the queue"
  scontrol requeue "$SLURM_JOB_ID"
}
)sh";

constexpr const char* kCoordinate = R"sh(
arguments=(run --run "$run" --workers 0@options@)
@recipe@@begin_tending@supervise @inside@"$hedgerow" "${arguments[@]}"
@end_tending@# 4: interrupted, and can go on. Without a signal it was 'hedgerow stop', which means it.
[ "$code" = 4 ] && [ -n "$told" ] && back_to_the_queue
exit "$code"
)sh";

constexpr const char* kRecipe =
    R"sh(# The recipe is for the run's beginning, or what was changed since; later rounds go on with what the run recorded.
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -e "$run/run.toml" ] || arguments+=(--recipe "$run/@folder@/@file@"@cluster@)
)sh";

// With an image. Launchers that end at once five times in a row end the job, as a coordinator would
// that tends them itself.
constexpr const char* kTend = R"sh(
trap 'hand_on failed' USR2

says() { grep -qs "$1" "$run/@logs@/status.json"; }

# hedgerow in its image has neither srun nor mpirun. So this shell starts what the run wants, again whenever that has ended.
tend() {
  local over= failures=0 begun launcher code
  trap 'over=1' USR1 TERM
  while [ -z "$over" ]; do
    launcher=
    # The coordinator makes the folder of the logs, and has no room for workers while it stops.
    [ -d "$run/@logs@" ] && ! says '"has_room":false' && launcher=@workers@
@ranks@    if [ -z "$launcher" ]; then
      sleep 1
      continue
    fi
    begun=$SECONDS
    "$run/@folder@/$launcher"
    code=$?
    [ -z "$over" ] || break
    failures=$((failures + 1))
    [ "$code" != 0 ] && [ "$code" != 4 ] && [ $((SECONDS - begun)) -lt 30 ] || failures=0
    if [ "$failures" = 5 ]; then
      echo "hedgerow: $run/@folder@/$launcher ended with $code at once, five times; $run/@logs@ says why" >&2
      kill -USR2 $$
      break
    fi
    sleep "$((failures + 1))"
  done
}

end_tending() {
  local second
  kill -USR1 "$tender" 2>/dev/null
  for second in {1..20}; do  # of workers that were just told; those that stay go with the job
    kill -0 "$tender" 2>/dev/null || break
    sleep 1
  done
  [ "$told" != failed ] || exit 5
}
)sh";

constexpr const char* kTendRanks = R"sh(    says 'waits for its ranks' && launcher=@file@
)sh";

constexpr const char* kArrayWorker = R"sh(
# Whether the job that coordinates is over; not if Slurm does not answer.
coordinator_is_over() {
  local said
  if said=$(squeue --noheader --job "$(cat "$run/@folder@/@coordinator_job@")" --format %T 2>&1); then
    [ -z "$said" ]
  else
    [[ $said = *"Invalid job id"* ]]
  fi
}

has_room() { [[ $(@inside@"$hedgerow" status --run "$run" --json 2>&1) != *'"has_room":false'* ]]; }

while [ -z "$told" ]; do
  supervise @srun@ @inside@"$hedgerow" worker --run "$run" --wait @wait@
  [ -z "$told" ] || break
  coordinator_is_over && exit 0
  [ "$code" = 2 ] && exit 2  # another version, or no such run: the same again would end the same
  # 4 without a word to this shell: the coordinator has no room now, for which the next one waits; else the step alone was
  # ended, as when Slurm is about to preempt the job.
  pause=5
  [ "$code" = 4 ] && has_room && pause=40
  supervise sleep "$pause"
  coordinator_is_over && exit 0
done
back_to_the_queue
exit 4
)sh";

std::string functions(const SlurmJob& job) {
  return kSupervise + filled(kBackToTheQueue,
                             {{"max_requeues", std::to_string(job.cluster.slurm.max_requeues)}});
}

// With an image: the function that starts workers (`launcher_file`; empty: others do) and, if it is
// here, the finetune stage.
std::string tending(const std::string& launcher_file, bool finetunes) {
  return filled(kTend,
                {{"workers", launcher_file},
                 {"ranks", finetunes ? kTendRanks : ""},
                 {"file", kRanksFile},
                 {"folder", RunLayout::kSlurm},
                 {"logs", RunLayout("").logs().string()}});
}

// A job whose batch step is the coordinator.
SlurmScript coordinating(const SlurmJob& job,
                         SlurmRole role,
                         const SlurmShape& shape,
                         const std::string& launcher_file) {
  const std::string name(to_string(role));
  std::string options, recipe;
  const bool finetunes = !job.finetunes_apart || role == SlurmRole::kFinetune;
  const bool tends = has_image(job) && (finetunes || !launcher_file.empty());
  if (!tends && !launcher_file.empty()) {
    options +=
        " --worker-launcher \"$run/" + std::string(RunLayout::kSlurm) + "/" + launcher_file + "\"";
  }
  if (job.finetunes_apart && role != SlurmRole::kFinetune) options += " --stop-before finetune";
  if (role != SlurmRole::kFinetune) {
    const std::string cluster =
        job.cluster.nodes.empty()
            ? ""
            : " --cluster \"$run/" + std::string(RunLayout::kSlurm) + "/" + kSlurmCluster + "\"";
    recipe = filled(kRecipe,
                    {{"folder", RunLayout::kSlurm}, {"file", kSlurmRecipe}, {"cluster", cluster}});
  }
  return {role,
          name + ".sbatch",
          head(job, shape, role, name + "-%j.log") + begin(job) + functions(job) +
              (tends ? tending(launcher_file, finetunes) : "") +
              filled(kCoordinate,
                     {{"options", options},
                      {"recipe", recipe},
                      {"begin_tending", tends ? "tend &\ntender=$!\n" : ""},
                      {"end_tending", tends ? "end_tending\n" : ""},
                      {"inside", inside_variable(job)}})};
}

// One task of the array: workers that come and go.
SlurmScript array_worker(const SlurmJob& job) {
  SlurmShape shape = job.cluster.workers;
  shape.nodes = 1;
  return {SlurmRole::kWorker,
          "worker.sbatch",
          head(job, shape, SlurmRole::kWorker, "worker-%A_%a.log") + "#SBATCH --array=0-" +
              std::to_string(job.array_tasks - 1) + "\n" + begin(job) + functions(job) +
              filled(kArrayWorker,
                     {{"srun", srun_words(shape)},
                      {"inside", inside_variable(job)},
                      {"wait", std::to_string(kWorkerWaitSeconds)},
                      {"folder", RunLayout::kSlurm},
                      {"coordinator_job", kCoordinatorJob}})};
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
