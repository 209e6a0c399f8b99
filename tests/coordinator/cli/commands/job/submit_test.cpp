// `hedgerow submit --slurm`: what it writes, refuses and hands to sbatch, with programs of Slurm's
// names that only take notes. tests/slurm runs the same on a real slurmctld.
#include <gmock/gmock.h>

#include "coordinator/cli/run/slurm_scripts.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "storage/recipe/recipe.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/shell_program.hpp"
#include "tests/coordinator/cli/small_run.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The command, with an sbatch that gives out numbers.
class Submit : public ::testing::Test {
 protected:
  Submit() {
    fs::create_directories(programs());
    write_program(programs() / "sbatch",
                  "echo \"$@\" >> '" + (run_.scratch / "sbatch.notes").string() + "'\n[ ! -e '" +
                      (run_.scratch / "refuses").string() + "' ] || case $* in *$(cat '" +
                      (run_.scratch / "refuses").string() +
                      "')*) echo 'sbatch: error: invalid partition specified: gqu' >&2; exit 1 ;; "
                      "esac\nwc -l < '" +
                      (run_.scratch / "sbatch.notes").string() + "'");
    write_program(programs() / "scancel",
                  "echo \"$@\" >> '" + (run_.scratch / "scancel.notes").string() + "'");
  }

  [[nodiscard]] fs::path programs() const { return run_.scratch / "bin"; }
  [[nodiscard]] std::string new_run() const { return (run_.scratch / "it's new").string(); }
  [[nodiscard]] std::string recipe() const { return run_.layout.recipe().string(); }
  [[nodiscard]] std::string notes(const std::string& program) const {
    return text_of(run_.scratch / (program + ".notes"));
  }

  Answer submit(std::vector<std::string> more, bool has_slurm = true) const {
    FakeConsole console;
    if (has_slurm) console.variables["PATH"] = "/nowhere:" + programs().string();
    std::vector<std::string> arguments{"submit", "--slurm"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_line(std::move(arguments), console);
  }

  SmallRun run_;
};

TEST_F(Submit, WritesTheScriptsAndHandsThemToSbatch) {
  const Answer answer =
      submit({"--run", new_run(), "--recipe", recipe(), "--nodes", "2", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const auto& json = answer.json.at(0);
  EXPECT_EQ(json.at("jobs"), nlohmann::json::parse(R"([{"role": "run", "job": "1"}])"));
  const fs::path folder = fs::path(new_run()) / "slurm";
  EXPECT_THAT(text_of(folder / "run.sbatch"), HasSubstr("#SBATCH --nodes='2'\n"));
  EXPECT_EQ(text_of(folder / kCoordinatorJob), "1\n");
  EXPECT_NE(fs::status(folder / "workers.sh").permissions() & fs::perms::owner_exec,
            fs::perms::none);
  EXPECT_EQ(notes("sbatch"), "--parsable " + (folder / "run.sbatch").string() + "\n");
  const storage::Recipe copied = storage::Recipe::load(folder / kSlurmRecipe);
  EXPECT_EQ(copied.model.path, storage::Recipe::load(recipe()).model.path);
  EXPECT_EQ(copied.workers.bind, "*") << "workers of the other node must reach the coordinator";
  EXPECT_TRUE(wire::read_coordinator_keys(storage::RunLayout(new_run()))) << "and nobody else";
}

TEST_F(Submit, OneNodeStaysOnItsLoopbackAddressWithoutKeys) {
  const std::string cluster = run_.scratch / "cluster.toml";
  storage::write_atomically(cluster, "[workers]\ntasks_per_node = 2\n");
  const Answer answer = submit({"--run", new_run(), "--recipe", recipe(), "--cluster", cluster});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_FALSE(wire::read_coordinator_keys(storage::RunLayout(new_run())));
}

TEST_F(Submit, ADryRunPrintsTheScriptsAndLeavesNothing) {
  const Answer answer = submit(
      {"--run", new_run(), "--recipe", recipe(), "--nodes", "2", "--dry-run"}, /*has_slurm=*/false);
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("#!/bin/bash"));
  EXPECT_THAT(answer.out, HasSubstr("exec srun"));
  EXPECT_FALSE(fs::exists(new_run()));
}

TEST_F(Submit, AnArraysJobsWaitForEachOther) {
  const Answer answer =
      submit({"--run", new_run(), "--recipe", recipe(), "--array", "3", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  std::vector<std::string> roles;
  for (const auto& job : answer.json.at(0).at("jobs")) roles.push_back(job.at("role"));
  EXPECT_THAT(roles, ElementsAre("coordinator", "worker", "finetune"));
  EXPECT_THAT(notes("sbatch"), HasSubstr("--dependency=after:1"));
  EXPECT_THAT(notes("sbatch"), HasSubstr("--dependency=afterok:1 --kill-on-invalid-dep=yes"));
}

TEST_F(Submit, WhatSbatchRefusesIsSaidAndHalfOfARunIsNotLeftInTheQueue) {
  std::ofstream(run_.scratch / "refuses") << "finetune.sbatch";
  const Answer answer = submit({"--run", new_run(), "--recipe", recipe(), "--array", "3"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_THAT(answer.err, HasSubstr("sbatch refused"));
  EXPECT_THAT(answer.err, HasSubstr("invalid partition specified: gqu"));
  EXPECT_EQ(notes("scancel"), "1 2\n");
}

TEST_F(Submit, ASlurmThatDoesNotAnswerIsNoFaultOfTheClusterFile) {
  for (const char* words :
       {"Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "resolve_ctls_from_dns_srv: res_nsearch error\nfatal: Could not establish a configuration "
        "source"}) {
    write_program(programs() / "sbatch",
                  "echo 'sbatch: error: " + std::string(words) + "' >&2; exit 1");
    const Answer answer = submit({"--run", new_run(), "--recipe", recipe(), "--nodes", "2"});
    EXPECT_EQ(answer.code, 5) << words;
    EXPECT_THAT(answer.err, HasSubstr("nothing was submitted"));
  }
}

TEST_F(Submit, IsPlannedForTheNodesOfTheClusterFileBeforeAnythingIsQueued) {
  const std::string cluster = run_.scratch / "cluster.toml";
  const auto submit_on = [&](const std::string& memory_gb) {
    storage::write_atomically(cluster,
                              "[[nodes]]\nname = \"n\"\ncount = 2\nmemory_gb = " + memory_gb +
                                  "\n[workers]\ntasks_per_node = 2\n");
    return submit({"--run", new_run(), "--recipe", recipe(), "--cluster", cluster});
  };
  const Answer refused = submit_on("0.01");
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("not even one layer fits"));
  EXPECT_FALSE(fs::exists(new_run()));
  EXPECT_FALSE(fs::exists(run_.scratch / "sbatch.notes"));
  const Answer answer = submit_on("64");
  ASSERT_EQ(answer.code, 0) << answer.err;
  const fs::path folder = fs::path(new_run()) / "slurm";
  EXPECT_EQ(text_of(folder / kSlurmCluster), text_of(cluster));
  EXPECT_THAT(text_of(folder / "run.sbatch"), HasSubstr("--cluster \"$run/slurm/cluster.toml\""));
  EXPECT_NE(storage::Recipe::load(folder / kSlurmRecipe).plan.compute_dtype, "auto");
}

TEST_F(Submit, WithoutSlurmItSaysWhereToGoAndWritesNothing) {
  const Answer answer =
      submit({"--run", new_run(), "--recipe", recipe(), "--nodes", "2"}, /*has_slurm=*/false);
  EXPECT_EQ(answer.code, 5);
  EXPECT_THAT(answer.err, HasSubstr("sbatch is not in PATH; submit from a login node"));
  EXPECT_FALSE(fs::exists(new_run()));
}

TEST_F(Submit, RefusesWhatWouldFailOnTheNodes) {
  EXPECT_THAT(submit({"--run", new_run()}).err, HasSubstr("give --recipe FILE"));
  EXPECT_THAT(
      submit({"--run", new_run(), "--recipe", recipe(), "--nodes", "2", "--array", "2"}).err,
      HasSubstr("exclude each other"));
  EXPECT_THAT(submit({"--run", new_run(), "--recipe", recipe()}).err,
              HasSubstr("finetune.ranks = 2 of the recipe"));
  EXPECT_THAT(submit({"--run", "/tmp/back\\slash", "--recipe", recipe()}).err,
              HasSubstr("cannot stand in a job script"));
  EXPECT_THAT(submit({"--run", recipe(), "--recipe", recipe()}).err, HasSubstr("is a file"));
  const Answer other = run_line({"submit", "--run", new_run(), "--recipe", recipe()});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("missing: --slurm"));
}

TEST_F(Submit, ARunThatIsDoneIsNotSubmitted) {
  run_.append(
      {Granted{TaskId::finetune(), 5, "mpi", 1, "cpu"}, TaskDone{5, {}, nlohmann::json::object()}});
  const Answer answer = submit({"--run", run_.directory(), "--nodes", "2", "--json"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_TRUE(answer.json.at(0).at("jobs").empty());
  EXPECT_EQ(notes("sbatch"), "");
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
