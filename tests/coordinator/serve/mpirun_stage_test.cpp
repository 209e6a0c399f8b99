// How the finetune stage ended, as its launcher hears of it: what a rank says itself counts.
// Catches: mpirun's boilerplate in place of a sentence that says what to mend, a retry of what a
// person must mend, the sentence of an earlier launch in the same log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "coordinator/serve/finetune_stage.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class MpirunStageTest : public ::testing::Test {
 protected:
  MpirunStageTest() {
    config_.worker_binary = "/bin/true";
    config_.run_directory = directory_.path();
    config_.logs = directory_ / "logs";
    fs::create_directories(config_.logs);
  }
  ~MpirunStageTest() override { ::setenv("PATH", path_.c_str(), 1); }

  // The end of a launch whose mpirun is this script.
  StageEnd end_of(const std::string& script) {
    std::ofstream(directory_ / "mpirun") << "#!/bin/sh\n" << script;
    fs::permissions(directory_ / "mpirun", fs::perms::owner_all);
    ::setenv("PATH", (directory_.path().string() + ":" + path_).c_str(), 1);
    const auto stage = make_mpirun_stage(config_);
    stage->start(7, "student/t6", "tcp://127.0.0.1:1");
    while (true) {
      if (auto end = stage->poll({}, {.is_held = true})) return *end;
    }
  }

  tests::TemporaryDirectory directory_;
  LauncherConfig config_{};
  std::string path_ = std::getenv("PATH");
};

constexpr const char* kBoilerplate =
    "echo 'mpirun detected that one or more processes exited with non-zero status' >&2\n";

TEST_F(MpirunStageTest, WhatTheFirstRankSaysIsTheReasonAndMpirunsWordsAreNot) {
  const StageEnd end = end_of(
      "echo 'step 1/4 loss 2.0' >&2\n"
      "echo 'hedgerow-worker: rank 1: the model is not here; mount it' >&2\n"
      "echo 'hedgerow-worker: rank 0: rank 1 is gone' >&2\n" +
      std::string(kBoilerplate) + "exit 2\n");
  EXPECT_EQ(end.how, "the finetune stage: rank 1: the model is not here; mount it");
  EXPECT_EQ(end.kind, storage::ErrorKind::kUsage) << "the same again would end the same";
  EXPECT_FALSE(end.is_interrupted);
}

TEST_F(MpirunStageTest, RanksAreToldTheMeshThatWasPlannedOrToDecide) {
  config_.ranks = 8;
  const std::string script = "echo \"$@\" >&2\nexit 5\n";
  EXPECT_THAT(end_of(script).how, HasSubstr("--mesh auto"));
  config_.mesh_of_ranks = [](int ranks) { return "2x" + std::to_string(ranks / 2); };
  EXPECT_THAT(end_of(script).how, HasSubstr("--mesh 2x4"));
}

TEST_F(MpirunStageTest, RanksThatDieWithoutAWordLeaveTheEndOfTheLog) {
  static_cast<void>(end_of("echo 'hedgerow-worker: rank 1: of the launch before' >&2\nexit 2\n"));
  const StageEnd end = end_of(std::string(kBoilerplate) + "exit 137\n");
  EXPECT_THAT(end.how, HasSubstr("mpirun detected"));
  EXPECT_THAT(end.how, Not(HasSubstr("the finetune stage: ")));
  EXPECT_EQ(end.kind, storage::ErrorKind::kUnavailable);
}

TEST_F(MpirunStageTest, ARankThatFailsForTheMachineIsTriedAgain) {
  const StageEnd end = end_of("echo 'hedgerow-worker: rank 1: out of memory' >&2\nexit 5\n");
  EXPECT_EQ(end.how, "the finetune stage: rank 1: out of memory");
  EXPECT_EQ(end.kind, storage::ErrorKind::kUnavailable);
}

}  // namespace
}  // namespace hedgerow::coordinator
