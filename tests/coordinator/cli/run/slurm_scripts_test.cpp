// The scripts of `hedgerow submit --slurm`: what they ask for, and what they do when Slurm speaks
// to them; with programs of Slurm's names that only take notes. tests/slurm runs the same on a real
// slurmctld.
#include "coordinator/cli/run/slurm_scripts.hpp"

#include <gmock/gmock.h>

#include <csignal>
#include <thread>

#include "coordinator/host/process.hpp"
#include "storage/base/error.hpp"
#include "tests/coordinator/cli/shell_program.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ProcessExit wait_for(ChildProcess& child) {
  for (;; std::this_thread::yield())
    if (const auto exit = child.poll()) return *exit;
}

SlurmJob job_in(const fs::path& run) {
  SlurmJob job;
  job.run = run.string();
  job.name = "hedgerow-x";
  job.hedgerow = "/shared/hedgerow";
  return job;
}

const SlurmScript& script_of(const std::vector<SlurmScript>& scripts, SlurmRole role) {
  for (const SlurmScript& script : scripts) {
    if (script.role == role) return script;
  }
  throw std::runtime_error("no such script");
}

TEST(SlurmScripts, AWordSurvivesTheShellWhateverItHolds) {
  const tests::TemporaryDirectory directory;
  for (const std::string word : {"plain",
                                 "two words",
                                 "it's",
                                 "\"quoted\"",
                                 "$HOME `id` $(id)",
                                 "a;b|c&d>e",
                                 "*?[x]",
                                 "#",
                                 "",
                                 "back\\slash",
                                 "-n",
                                 "tab\there"}) {
    std::ofstream(directory / "script") << "printf '%s' " << shell_word(word) << "\n";
    ChildProcess child =
        ChildProcess::start({"bash", (directory / "script").string()}, directory / "log");
    EXPECT_EQ(wait_for(child).code, 0);
    EXPECT_EQ(text_of(directory / "log"), word);
    fs::remove(directory / "log");
  }
}

TEST(SlurmScripts, AnAllocationAsksForWhatTheClusterFileSays) {
  SlurmJob job = job_in("/shared/50%/it's");
  job.cluster.slurm.partition = "gpu";
  job.cluster.slurm.account = "mine";
  job.cluster.slurm.qos = "long";
  job.cluster.slurm.modules = {"openmpi/4.1"};
  job.cluster.slurm.prologue = {"export A=1"};
  job.cluster.slurm.sbatch = {"--exclusive"};
  job.cluster.workers = {.nodes = 3, .tasks_per_node = 4, .gpus_per_task = 2, .cpus_per_task = 12};
  job.cluster.workers.qos = "short";
  job.cluster.workers.srun = {"--cpu-bind=cores"};
  job.ranks = 12;
  const auto scripts = slurm_scripts(job);
  ASSERT_EQ(scripts.size(), 2U);
  const std::string& run = script_of(scripts, SlurmRole::kRun).text;
  for (const char* line : {"#SBATCH --partition='gpu'\n",
                           "#SBATCH --account='mine'\n",
                           "#SBATCH --qos='short'\n",
                           "#SBATCH --nodes='3'\n",
                           "#SBATCH --ntasks-per-node='4'\n",
                           "#SBATCH --cpus-per-task='12'\n",
                           "#SBATCH --gpus-per-node='8'\n",
                           "#SBATCH --signal='B:USR1@180'\n",
                           "#SBATCH --open-mode=append\n",
                           "#SBATCH --requeue\n",
                           "#SBATCH --exclusive\n",
                           "#SBATCH --output='/shared/50%%/it'\\''s/slurm/run-%j.log'\n",
                           "module load 'openmpi/4.1'\nexport A=1\n",
                           "--worker-launcher \"$run/slurm/workers.sh\""}) {
    EXPECT_THAT(run, HasSubstr(line));
  }
  EXPECT_LT(run.rfind("#SBATCH"), run.find("run=")) << "sbatch reads none behind the first command";
  EXPECT_THAT(run, Not(HasSubstr("--stop-before")));
  EXPECT_THAT(script_of(scripts, SlurmRole::kLauncher).text,
              HasSubstr("exec srun --kill-on-bad-exit=0 --wait=0 --cpus-per-task=12 "
                        "--gpus-per-task=2 '--cpu-bind=cores'"));
}

TEST(SlurmScripts, AnArrayHasACoordinatorOfItsOwnAndTheFinetuneStageAnAllocationOfItsOwn) {
  SlurmJob job = job_in("/shared/run");
  job.array_tasks = 5;
  job.finetunes_apart = true;
  job.ranks = 8;
  job.cluster.workers = {.nodes = 9, .tasks_per_node = 4, .gpus_per_task = 1};
  job.cluster.coordinator.memory = "8G";
  const auto scripts = slurm_scripts(job);
  std::vector<std::string> files;
  for (const SlurmScript& script : scripts) files.push_back(script.file);
  EXPECT_THAT(
      files,
      ElementsAre("coordinator.sbatch", "worker.sbatch", "finetune.sbatch", "finetune-workers.sh"));
  const std::string& coordinator = script_of(scripts, SlurmRole::kCoordinator).text;
  EXPECT_THAT(coordinator, HasSubstr("#SBATCH --mem='8G'\n"));
  EXPECT_THAT(coordinator, HasSubstr("#SBATCH --nodes='1'\n#SBATCH --ntasks-per-node='1'\n"));
  EXPECT_THAT(coordinator, HasSubstr("--stop-before finetune"));
  EXPECT_THAT(coordinator, Not(HasSubstr("--worker-launcher")));
  EXPECT_THAT(coordinator, Not(HasSubstr("gpus")));
  const std::string& worker = script_of(scripts, SlurmRole::kWorker).text;
  EXPECT_THAT(worker, HasSubstr("#SBATCH --array=0-4\n"));
  EXPECT_THAT(worker, HasSubstr("#SBATCH --nodes='1'\n#SBATCH --ntasks-per-node='4'\n"));
  const std::string& finetune = script_of(scripts, SlurmRole::kFinetune).text;
  EXPECT_THAT(finetune, HasSubstr("#SBATCH --nodes='2'\n#SBATCH --ntasks-per-node='4'\n"))
      << "eight ranks of four a node";
  EXPECT_THAT(finetune, HasSubstr("#SBATCH --gpus-per-node='4'\n"));
  EXPECT_THAT(finetune, Not(HasSubstr("--recipe")));
}

TEST(SlurmScripts, RanksThatTheAllocationHasNoPlaceForAreRefused) {
  SlurmJob job = job_in("/shared/run");
  job.cluster.workers = {.nodes = 2, .tasks_per_node = 2};
  job.ranks = 8;
  try {
    static_cast<void>(slurm_scripts(job));
    FAIL() << "8 ranks in 4 tasks";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(),
                HasSubstr("the job has 4 tasks (nodes x tasks_per_node); ask for more with "
                          "--nodes or in [workers]"));
  }
}

SlurmJob job_in_an_image(const fs::path& run) {
  SlurmJob job = job_in(run);
  job.hedgerow = "hedgerow";
  job.binds = {"/shared/models", run.string()};
  job.cluster.slurm.container = "/shared/it's.sif";
  job.cluster.workers = {.nodes = 2, .tasks_per_node = 2, .gpus_per_task = 1};
  job.ranks = 4;
  return job;
}

constexpr const char* kInside =
    "apptainer exec --nv --bind '/shared/models' --bind '/shared/run' '/shared/it'\\''s.sif' ";

TEST(SlurmScripts, WithAnImageEachOfOursRunsInItAndTheLaunchersOutside) {
  const auto scripts = slurm_scripts(job_in_an_image("/shared/run"));
  ASSERT_EQ(scripts.size(), 3U);
  const std::string& run = scripts[0].text;
  EXPECT_THAT(run, HasSubstr(std::string("inside=(") + kInside + ")\n"));
  EXPECT_THAT(run, HasSubstr("supervise \"${inside[@]}\" \"$hedgerow\" \"${arguments[@]}\"\n"));
  EXPECT_THAT(run, HasSubstr("hedgerow='hedgerow'\n"));
  EXPECT_THAT(run, HasSubstr("workers=workers.sh\nranks=ranks.sh\n"));
  EXPECT_THAT(run, Not(HasSubstr("--worker-launcher"))) << "srun is outside";
  EXPECT_EQ(scripts[1].file, "workers.sh");
  EXPECT_THAT(scripts[1].text, HasSubstr("exec srun --kill-on-bad-exit=0"));
  EXPECT_THAT(scripts[1].text,
              HasSubstr(std::string(" \\\n  ") + kInside +
                        "'hedgerow' worker --run '/shared/run' --wait 60\n"));
  EXPECT_EQ(scripts[2].file, "ranks.sh");
  EXPECT_EQ(scripts[2].role, SlurmRole::kLauncher);
}

TEST(SlurmScripts, AnImageHasTheDriverWhereTheClusterFileTellsOfGpus) {
  SlurmJob job = job_in_an_image("/shared/run");
  job.cluster.workers.gpus_per_task = 0;
  for (const SlurmScript& script : slurm_scripts(job))
    EXPECT_THAT(script.text, Not(HasSubstr("--nv"))) << script.file;
  job.cluster.nodes = {{.name = "x", .gpus = 8}};
  for (const SlurmScript& script : slurm_scripts(job))
    EXPECT_THAT(script.text, HasSubstr("apptainer exec --nv ")) << script.file;
}

TEST(SlurmScripts, AnImagesPathOfTheProgramIsTheOneInsideIt) {
  SlurmJob job = job_in_an_image("/shared/run");
  job.hedgerow = "/opt/hedgerow/bin/hedgerow";
  const auto scripts = slurm_scripts(job);
  EXPECT_THAT(scripts[1].text, HasSubstr("'/opt/hedgerow/bin/hedgerow' worker"));
  EXPECT_THAT(scripts[2].text, HasSubstr("worker='/opt/hedgerow/bin/hedgerow-worker'\n"));
}

TEST(SlurmScripts, AnArrayWithAnImageStartsItsRanksInTheirOwnAllocation) {
  SlurmJob job = job_in_an_image("/shared/run");
  job.array_tasks = 3;
  job.finetunes_apart = true;
  const auto scripts = slurm_scripts(job);
  std::vector<std::string> files;
  for (const SlurmScript& script : scripts) files.push_back(script.file);
  EXPECT_THAT(files,
              ElementsAre("coordinator.sbatch",
                          "worker.sbatch",
                          "finetune.sbatch",
                          "finetune-workers.sh",
                          "ranks.sh"));
  EXPECT_THAT(scripts[0].text, Not(HasSubstr("tend()"))) << "it starts nothing";
  EXPECT_THAT(scripts[0].text, HasSubstr("supervise \"${inside[@]}\" \"$hedgerow\""));
  EXPECT_THAT(scripts[1].text, HasSubstr(" \"${inside[@]}\" \"$hedgerow\" worker --run"));
  EXPECT_THAT(scripts[1].text, HasSubstr("[[ $(\"${inside[@]}\" \"$hedgerow\" status"));
  EXPECT_THAT(scripts[2].text, HasSubstr("workers=finetune-workers.sh\nranks=ranks.sh\n"));
}

// A script of ours between a Slurm and a hedgerow that only take notes.
class SlurmRound : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(run() / "slurm");
    fs::create_directories(programs());
    // Answers SIGUSR1 as hedgerow does; without a signal to come it ends at once with $CODE.
    write_program(programs() / "hedgerow",
                  "trap 'exit 4' USR1 TERM\necho \"$@\" >> '" + notes("hedgerow") + "'\ntouch '" +
                      (directory_ / "begun").string() +
                      "'\nwhile [ -n \"$WAITS\" ]; do sleep 0.02; done\nexit \"$CODE\"");
    for (const char* name : {"scontrol", "scancel"})
      write_program(programs() / name, "echo \"$@\" >> '" + notes(name) + "'");
    write_program(programs() / "squeue", "echo \"$STATE\"");
    write_program(programs() / "srun", "while [[ $1 == -* ]]; do shift; done; exec \"$@\"");
  }

  [[nodiscard]] fs::path run() const { return directory_ / "it's a run"; }
  [[nodiscard]] fs::path programs() const { return directory_ / "bin"; }
  [[nodiscard]] std::string notes(const std::string& program) const {
    return (directory_ / (program + ".notes")).string();
  }

  SlurmJob job() const {
    SlurmJob job = job_in(run());
    job.hedgerow = (programs() / "hedgerow").string();
    job.cluster.slurm.max_requeues = 5;
    return job;
  }

  struct Round {
    int code = 0;                   // hedgerow's, if no signal comes
    int signal = 0;                 // of Slurm's, to the batch shell
    std::string state = "RUNNING";  // what squeue says
    int restarts = 0;
  };
  struct End {
    int code = 0;
    bool is_requeued = false;
    std::string arguments;  // of hedgerow
  };

  End play(const Round& round, SlurmRole role = SlurmRole::kRun, SlurmJob job = {}) {
    if (job.run.empty()) job = this->job();
    for (const auto& entry : fs::directory_iterator(directory_.path())) {
      if (entry.path().extension() == ".notes") fs::remove(entry.path());
    }
    fs::remove(directory_ / "begun");
    const fs::path script = run() / "slurm" / "script";
    std::ofstream(script) << script_of(slurm_scripts(job), role).text;
    ChildProcess child =
        ChildProcess::start({"env",
                             "PATH=" + programs().string() + ":/usr/bin:/bin",
                             "SLURM_JOB_ID=77",
                             "SLURM_RESTART_COUNT=" + std::to_string(round.restarts),
                             "CODE=" + std::to_string(round.code),
                             "STATE=" + round.state,
                             std::string("WAITS=") + (round.signal != 0 ? "1" : ""),
                             "bash",
                             script.string()},
                            directory_ / "log");
    if (round.signal != 0) {
      while (!fs::exists(directory_ / "begun")) std::this_thread::yield();
      ::kill(child.id().pid, round.signal);
    }
    const ProcessExit exit = wait_for(child);
    const std::string requeues = text_of(notes("scontrol"));
    EXPECT_TRUE(requeues.empty() || requeues == "requeue 77\n") << requeues;
    return {exit.code, !requeues.empty(), text_of(notes("hedgerow"))};
  }

  tests::TemporaryDirectory directory_;
};

TEST_F(SlurmRound, OnlyAnInterruptionBySlurmThatCanGoOnGoesBackToTheQueue) {
  for (const int code : {0, 1, 2, 3, 5, 137}) {
    const End end = play({.code = code});
    EXPECT_EQ(end.code, code);
    EXPECT_FALSE(end.is_requeued) << "exit code " << code;
  }
  EXPECT_FALSE(play({.code = 4}).is_requeued) << "'hedgerow stop' means it";
  const End limit = play({.signal = SIGUSR1});
  EXPECT_EQ(limit.code, 4);
  EXPECT_TRUE(limit.is_requeued) << "the wall-time limit";
  EXPECT_TRUE(play({.signal = SIGTERM}).is_requeued) << "preempted: the job still runs";
  EXPECT_FALSE(play({.signal = SIGTERM, .state = "COMPLETING"}).is_requeued) << "cancelled";
}

TEST_F(SlurmRound, TheRoundsOfASubmissionAreCounted) {
  EXPECT_TRUE(play({.signal = SIGUSR1, .restarts = 4}).is_requeued);
  const End last = play({.signal = SIGUSR1, .restarts = 5});
  EXPECT_FALSE(last.is_requeued);
  EXPECT_EQ(last.code, 4);
  EXPECT_THAT(text_of(directory_ / "log"), HasSubstr("which is slurm.max_requeues"));
}

TEST_F(SlurmRound, TheRecipeIsForTheFirstRoundAndForARunThatHasNotBegun) {
  const std::string recipe = " --recipe " + (run() / "slurm/recipe.toml").string();
  EXPECT_THAT(play({}).arguments, HasSubstr(recipe));
  EXPECT_THAT(play({.restarts = 1}).arguments, HasSubstr(recipe))
      << "the first round never began it";
  std::ofstream(run() / "run.toml") << "begun";
  EXPECT_THAT(play({}).arguments, HasSubstr(recipe)) << "a submission may change it";
  EXPECT_THAT(play({.restarts = 1}).arguments, Not(HasSubstr(recipe)));
  EXPECT_THAT(play({.restarts = 1}).arguments, HasSubstr("run --run " + run().string()));
}

TEST_F(SlurmRound, WithAnImageWhatTheRunWantsIsStartedBesideIt) {
  SlurmJob boxed = job();
  boxed.cluster.slurm.container = (directory_ / "box.sif").string();
  boxed.binds = {run().string()};
  write_program(programs() / "sleep", "exec /bin/sleep 0.01");
  write_program(programs() / "apptainer",
                "echo \"$@\" >> '" + notes("apptainer") +
                    "'\nshift\nwhile [[ $1 == --* ]]; do shift 2; done\nshift\nexec \"$@\"");
  EXPECT_EQ(play({.code = 0}, SlurmRole::kRun, boxed).code, 5) << "no image on the node";
  EXPECT_THAT(text_of(directory_ / "log"),
              HasSubstr("does not see the image " + boxed.cluster.slurm.container));
  std::ofstream(directory_ / "box.sif") << "image";
  const End done = play({.code = 0}, SlurmRole::kRun, boxed);
  EXPECT_EQ(done.code, 0);
  EXPECT_THAT(done.arguments, HasSubstr("run --run " + run().string() + " --workers 0"));
  EXPECT_THAT(text_of(notes("apptainer")),
              HasSubstr("exec --bind " + run().string() + " " + boxed.cluster.slurm.container +
                        " " + boxed.hedgerow + " run"));
  EXPECT_TRUE(play({.signal = SIGUSR1}, SlurmRole::kRun, boxed).is_requeued);
  // Workers that cannot start: the fifth end in a row ends the job.
  fs::create_directories(run() / "logs");
  const fs::path workers = run() / "slurm" / "workers.sh";
  write_program(workers, "echo started >> '" + (directory_ / "starts").string() + "'\nexit 255");
  write_program(programs() / "hedgerow", "trap 'exit 4' USR1\nwhile :; do sleep 0.02; done");
  const End failed = play({.code = 0}, SlurmRole::kRun, boxed);
  EXPECT_EQ(failed.code, 5);
  EXPECT_FALSE(failed.is_requeued);
  EXPECT_EQ(text_of(directory_ / "starts"), "started\nstarted\nstarted\nstarted\nstarted\n");
  EXPECT_THAT(text_of(directory_ / "log"), HasSubstr("workers.sh ended with 255 at once"));
}

TEST_F(SlurmRound, WithAnImageMpirunStartsEachRankInAContainerOfItsOwn) {
  SlurmJob boxed = job();
  boxed.hedgerow = "hedgerow";
  boxed.binds = {run().string()};
  boxed.cluster.slurm.container = "/shared/it's.sif";
  boxed.cluster.workers = {.nodes = 2, .tasks_per_node = 2, .gpus_per_task = 1};
  boxed.ranks = 4;
  fs::create_directories(run() / "logs");
  write_program(programs() / "mpirun", "echo \"$@\"");
  const std::vector<SlurmScript> scripts = slurm_scripts(boxed);
  ASSERT_EQ(scripts.back().file, "ranks.sh");
  std::ofstream(run() / "slurm/ranks.sh") << scripts.back().text;
  ChildProcess child = ChildProcess::start({"env",
                                            "PATH=" + programs().string() + ":/usr/bin:/bin",
                                            "bash",
                                            (run() / "slurm/ranks.sh").string()},
                                           directory_ / "log");
  EXPECT_EQ(wait_for(child).code, 0) << text_of(directory_ / "log");
  const std::string words = text_of(run() / "logs/finetune.log");
  EXPECT_THAT(words,
              ::testing::StartsWith("--oversubscribe --bind-to none --mca "
                                    "btl_vader_single_copy_mechanism none --mca "
                                    "odls_base_sigkill_timeout 3 "));
  EXPECT_THAT(words,
              HasSubstr(" -n 4 apptainer exec --nv --bind " + run().string() +
                        " /shared/it's.sif hedgerow-worker finetune --run " + run().string() +
                        " --wait 600\n"));
}

TEST_F(SlurmRound, AWorkerOfAnArrayGoesBackWhenSlurmTakesItsNodeAndEndsWithItsCoordinator) {
  SlurmJob array = job();
  array.array_tasks = 2;
  std::ofstream(run() / "slurm" / kCoordinatorJob) << "76\n";
  EXPECT_TRUE(play({.signal = SIGUSR1}, SlurmRole::kWorker, array).is_requeued);
  EXPECT_TRUE(play({.signal = SIGTERM}, SlurmRole::kWorker, array).is_requeued);
  EXPECT_FALSE(
      play({.signal = SIGTERM, .state = "COMPLETING"}, SlurmRole::kWorker, array).is_requeued);
  const End over = play({.code = 0, .state = ""}, SlurmRole::kWorker, array);
  EXPECT_EQ(over.code, 0) << "the coordinator's job is in no queue";
  EXPECT_FALSE(over.is_requeued);
  EXPECT_EQ(play({.code = 2}, SlurmRole::kWorker, array).code, 2)
      << "refused: no use in trying again";
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
