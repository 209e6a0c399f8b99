// Who holds a run, and how long it takes to find out.
#include "coordinator/host/run_ownership.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <list>

#include "coordinator/host/tokenize_stage.hpp"
#include "coordinator/status/status.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/coordinator/run_fixture.hpp"
#include "tests/support/forked_process.hpp"

namespace hedgerow::coordinator {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class RunOwnershipTest : public RunFixture {
 protected:
  static wire::CoordinatorFile elsewhere() {
    return {.host = "far-away",
            .process = {77, 1},
            .term = 3,
            .endpoint = "",
            .started_at = "2026-11-21T12:00:00Z",
            .heartbeat_count = 5,
            .children = {}};
  }
  // The error; empty: nobody holds the run.
  std::string refusal(const Leftovers& known = {}) {
    try {
      found_ = refuse_if_held(layout_, wait_, known);
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
      return error.what();
    }
    return "";
  }

  std::vector<std::string> said_;
  std::chrono::milliseconds waited_{0};
  std::function<void()> while_waiting_ = [] {};
  OwnershipWait wait_{[this](const std::string& text) { said_.push_back(text); },
                      [this](std::chrono::milliseconds pause) {
                        waited_ += pause;
                        while_waiting_();
                      }};
  Leftovers found_;
};

TEST_F(RunOwnershipTest, AnEmptyDirectoryOrADeadProcessOfThisHostIsFreeAtOnce) {
  EXPECT_EQ(refusal(), "");
  wire::CoordinatorFile dead = elsewhere();
  dead.host = wire::this_host();
  dead.process = {wire::this_process().pid, 1};  // the pid lives, but began at another time
  wire::write_coordinator_file(layout_, dead);
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(waited_, seconds(0));
}

TEST_F(RunOwnershipTest, AForeignHostIsWaitedForOnceAndThatIsSaid) {
  wire::write_coordinator_file(layout_, elsewhere());
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(waited_, kForeignHostTimeout);
  EXPECT_THAT(said_,
              ElementsAre(AllOf(HasSubstr("far-away"), HasSubstr("pid 77"), HasSubstr("15 s"))));
  EXPECT_EQ(refusal(found_), "");
  EXPECT_EQ(waited_, kForeignHostTimeout) << "it was found dead already";
  EXPECT_EQ(said_.size(), 1U);
}

TEST_F(RunOwnershipTest, ABeatOfAForeignHostRefusesAtOnce) {
  wire::write_coordinator_file(layout_, elsewhere());
  while_waiting_ = [this] {
    wire::CoordinatorFile alive = elsewhere();
    ++alive.heartbeat_count;
    if (waited_ == seconds(4)) wire::write_coordinator_file(layout_, alive);
  };
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("is coordinated by pid 77 on far-away"), HasSubstr("term 3")));
  EXPECT_EQ(waited_, seconds(4));
}

TEST_F(RunOwnershipTest, ARunWhoseTokensAreMadeIsHeldAndShown) {
  storage::write_atomically(layout_.recipe(), "# only its presence matters here\n");
  EXPECT_EQ(read_status(layout_).state, "new");
  {
    const TokenizeStage tokenize_stage(layout_);
    const RunStatus status = read_status(layout_);
    EXPECT_EQ(status.state, "preparing");
    EXPECT_EQ(status.pid, wire::this_process().pid);
    EXPECT_EQ(refusal(), "") << "our own";
    wire::CoordinatorFile other = *wire::read_coordinator_file(layout_.tokenize_stage_file());
    other.process = *wire::process_with(1);  // some other process that lives
    wire::write_coordinator_file(layout_.tokenize_stage_file(), other);
    EXPECT_THAT(refusal(), HasSubstr("is being prepared by pid 1 "));
  }
  EXPECT_EQ(read_status(layout_).state, "new");
  wire::write_coordinator_file(layout_.tokenize_stage_file(), elsewhere());
  EXPECT_EQ(read_status(layout_).state, "preparing") << "written a moment ago by another host";
  std::filesystem::last_write_time(
      layout_.tokenize_stage_file(),
      std::filesystem::file_time_type::clock::now() - std::chrono::minutes(5));
  EXPECT_EQ(read_status(layout_).state, "new") << "its host fell silent";
}

class LostRace : public RunOwnershipTest {
 protected:
  std::string sentence(const Leftovers& known = {}) {
    return name_winner(layout_, storage::Overtaken("it was lost"), known, wait_);
  }
  // The claim of a process of this host that lives.
  static wire::CoordinatorFile winner(std::uint64_t term) {
    wire::CoordinatorFile file = elsewhere();
    file.host = wire::this_host();
    file.process = *wire::process_with(1);
    file.term = term;
    return file;
  }
};

TEST_F(LostRace, TheWinnerIsNamedByHostPidAndTermOnceItSaysWhoItIs) {
  wire::write_coordinator_file(layout_.tokenize_stage_file(), winner(0));
  while_waiting_ = [this] {
    if (waited_ == seconds(2)) wire::write_coordinator_file(layout_, winner(7));
  };
  EXPECT_EQ(sentence(),
            "it was lost; the run is coordinated by pid 1 on " + wire::this_host() +
                " (term 7, since 2026-11-21T12:00:00Z); 'hedgerow watch' shows it, 'hedgerow stop' "
                "ends it");
  EXPECT_EQ(waited_, seconds(2));
}

TEST_F(LostRace, OneThatHasNoTermYetIsNamedByHostAndPid) {
  wire::write_coordinator_file(layout_.tokenize_stage_file(), winner(0));
  EXPECT_THAT(sentence(), HasSubstr("the run is being prepared by pid 1 on " + wire::this_host()));
  EXPECT_EQ(waited_, kWinnerTimeout);
}

TEST_F(LostRace, WhatWasThereBeforeIsNotTheWinner) {
  wire::write_coordinator_file(layout_, elsewhere());
  EXPECT_THAT(sentence({elsewhere(), std::nullopt}), HasSubstr("'hedgerow status' may tell"));
  wire::CoordinatorFile awake = elsewhere();
  ++awake.heartbeat_count;
  wire::write_coordinator_file(layout_, awake);
  EXPECT_THAT(sentence({elsewhere(), std::nullopt}),
              HasSubstr("coordinated by pid 77 on far-away (term 3"));
}

// Each process says in a file how it ended, so that nobody is waited for who waits himself.
TEST_F(RunOwnershipTest, OfProcessesThatPrepareARunAtOnceOneGoesOnAndTheOthersAreToldWhich) {
  constexpr std::size_t kProcesses = 4;
  const auto prepare = [this] {
    const auto say = [this](const std::string& how, const std::string& text) {
      storage::write_atomically(directory_ / (how + std::to_string(::getpid())), text);
    };
    try {
      const TokenizeStage tokenize_stage(layout_);
      say("won-", "");
      ::pause();
    } catch (const storage::Error& error) {
      say("lost-", error.what());
    }
  };
  wire::CoordinatorFile dead = elsewhere();
  dead.host = wire::this_host();
  wire::write_coordinator_file(layout_.tokenize_stage_file(), dead);  // of a run that was killed
  std::list<tests::ForkedProcess> processes;
  for (std::size_t i = 0; i < kProcesses; ++i) processes.emplace_back(prepare);
  std::vector<std::string> won, lost;
  while (won.size() + lost.size() < kProcesses) {
    won.clear();
    lost.clear();
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      const std::string name = entry.path().filename();
      if (name.starts_with("won-")) won.push_back(name.substr(4));
      if (name.starts_with("lost-")) lost.push_back(storage::read_text(entry.path()));
    }
  }
  ASSERT_EQ(won.size(), 1U) << won.front() << " " << won.back();
  EXPECT_THAT(lost, Each(HasSubstr("is being prepared by pid " + won.front() + " on ")));
  EXPECT_EQ(std::to_string(wire::read_coordinator_file(layout_.tokenize_stage_file())->process.pid),
            won.front());
}

}  // namespace
}  // namespace hedgerow::coordinator
