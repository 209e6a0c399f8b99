// Processes of doctor that meet through files: played by threads, and by files written by hand.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "storage/base/utc.hpp"
#include "storage/files/file.hpp"
#include "tests/coordinator/cli/doctor/findings.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using tests::TemporaryDirectory;
using namespace std::chrono_literals;

class Peers : public ::testing::Test {
 protected:
  PeerOptions options(int num_processes, const std::string& host) {
    return {.num_processes = num_processes,
            .timeout = 20s,
            .look_every = 2ms,
            .host = host,
            .address = "127.0.0.1"};
  }

  // As a process on n9 would write it that has seen everybody, by a clock that is `ahead` seconds
  // ahead.
  void write_file_of_n9(double ahead) {
    fs::create_directories(folder());
    const nlohmann::json file = {{"host", "n9"},
                                 {"address", ""},
                                 {"port", 0},
                                 {"clock", storage::wall_seconds() + ahead},
                                 {"done", true}};
    storage::write_atomically(folder() / "n9.json", file.dump());
  }

  fs::path folder() const { return scratch_.path() / ".hedgerow-doctor-peers"; }
  TemporaryDirectory scratch_;
};

TEST_F(Peers, ThreeThatStartTogetherSeeAndReachEachOtherAndLeaveNothing) {
  std::vector<std::vector<Finding>> found(3);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < found.size(); ++i) {
      threads.emplace_back(
          [&, i] { found[i] = meet_peers(scratch_.path(), options(3, "n" + std::to_string(i))); });
    }
  }
  for (const auto& findings : found) {
    ASSERT_EQ(findings.size(), 3U);
    for (const Finding& finding : findings)
      EXPECT_EQ(finding.level, Level::kOk) << finding.check << ": " << finding.found;
  }
  EXPECT_NE(found[0][0].found.find("n1, n2"), std::string::npos) << found[0][0].found;
  EXPECT_TRUE(fs::is_empty(scratch_.path())) << "something was left behind";
}

TEST_F(Peers, OneThatStaysAloneFailsAndSaysHowToStartTheOthers) {
  PeerOptions alone = options(2, "n1");
  alone.timeout = 50ms;
  const auto findings = meet_peers(scratch_.path(), alone);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kFail);
  EXPECT_NE(findings[0].found.find("0 of 1"), std::string::npos) << findings[0].found;
  EXPECT_NE(findings[0].fix.find("--peers 2"), std::string::npos) << findings[0].fix;
  EXPECT_TRUE(fs::is_empty(scratch_.path()));
}

TEST_F(Peers, AClockThatIsAheadIsToldByHowMuchAndOfWhom) {
  write_file_of_n9(100.0);
  const auto findings = meet_peers(scratch_.path(), options(2, "n1"));
  const Finding clocks = named(findings, "clocks of the nodes");
  EXPECT_EQ(clocks.level, Level::kWarn);
  EXPECT_NE(clocks.found.find("n9"), std::string::npos) << clocks.found;
  EXPECT_NE(clocks.found.find("ahead"), std::string::npos) << clocks.found;
}

TEST_F(Peers, AClockThatAgreesIsNoFindingAndAnAddressThatDoesNotAnswerIs) {
  write_file_of_n9(0.0);
  const auto findings = meet_peers(scratch_.path(), options(2, "n1"));
  EXPECT_EQ(named(findings, "clocks of the nodes").level, Level::kOk);
  EXPECT_EQ(named(findings, "connections between nodes").level, Level::kWarn);
}

TEST_F(Peers, AFileThatIsThereWithoutItsContentFails) {
  fs::create_directories(folder());
  std::ofstream(folder() / "torn.json") << "{\"host\": \"n";
  write_file_of_n9(0.0);
  const auto findings = meet_peers(scratch_.path(), options(2, "n1"));
  EXPECT_EQ(named(findings, "visibility between nodes").level, Level::kFail);
}

TEST_F(Peers, ADirectoryThatCannotBeWrittenIsAFinding) {
  const auto findings = meet_peers("/proc/no-such-place", options(2, "n1"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kFail);
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
