// What doctor says of programs that answer what no program of ours would: real processes, of
// scripts that stand where hedgerow-worker and the launchers would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "coordinator/cli/doctor/doctor.hpp"
#include "tests/coordinator/cli/doctor/findings.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OfStrangePrograms : public ::testing::Test {
 protected:
  OfStrangePrograms() {
    ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
    console_.variables["HEDGEROW_WORKER"] = (folder_ / "hedgerow-worker").string();
    console_.variables["HEDGEROW_PYTHON"] = "/bin/true";
  }
  ~OfStrangePrograms() override { ::setenv("PATH", path_.c_str(), 1); }

  void answers(const std::string& program, const std::string& text) const {
    const fs::path path = folder_ / program;
    std::ofstream(path) << "#!/bin/sh\ncat <<'end'\n" << text << "\nend\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  tests::TemporaryDirectory folder_;
  std::string path_ = std::getenv("PATH");
  FakeConsole console_;
  Terminal terminal_{console_};
};

TEST_F(OfStrangePrograms, AProbeThatAnswersNonsenseIsAFailureAndTheOthersAreStillLookedAt) {
  for (const char* nonsense : {"no JSON",
                               "[1]",
                               R"({"version":1})",
                               R"({"version":"1","git_hash":{}})",
                               R"({"mpi":5})",
                               R"({"nccl":{"built":7}})"}) {
    answers("hedgerow-worker", nonsense);
    const std::vector<Finding> findings = examine_programs(terminal_);
    const Finding worker = named(findings, "hedgerow-worker");
    EXPECT_EQ(worker.level, Level::kFail) << nonsense;
    EXPECT_THAT(worker.found, HasSubstr(std::string("unexpected answer: ") + nonsense));
    EXPECT_FALSE(worker.fix.empty());
    named(findings, "Python scripts");
  }
}

TEST_F(OfStrangePrograms, RanksThatAnswerNonsenseAreAFailureOfTheirLauncherAlone) {
  answers("hedgerow-worker", "");
  for (const char* nonsense : {R"({"ranks":2,"hosts":[1,2]})",
                               R"({"ranks":"two"})",
                               R"({"ranks":2,"hosts":["a"],"exchange_seconds":[]})"}) {
    answers("mpirun", nonsense);
    const std::vector<Finding> findings = examine_mpi_launch(terminal_);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].level, Level::kFail) << nonsense;
    EXPECT_FALSE(findings[0].fix.empty());
  }
}

TEST_F(OfStrangePrograms, ADoctorOnAnotherNodeThatAnswersNonsenseIsAFailure) {
  console_.variables["SLURM_JOB_ID"] = "7";
  console_.variables["SLURM_JOB_NUM_NODES"] = "2";
  for (const char* nonsense : {R"({"checks":[1]})",
                               R"({"checks":[{"check":"clocks","level":4}]})",
                               R"({"checks":"all"})"}) {
    answers("srun", nonsense);
    const std::vector<Finding> findings = examine_nodes(terminal_, folder_.path());
    ASSERT_EQ(findings.size(), 1U) << nonsense;
    EXPECT_EQ(findings[0].level, Level::kFail) << nonsense;
    EXPECT_THAT(findings[0].fix, HasSubstr("hedgerow doctor --peers 2"));
  }
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
