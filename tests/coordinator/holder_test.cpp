// Who holds a run, and how long it takes to find out.
#include "coordinator/holder.hpp"

#include <gmock/gmock.h>

#include "coordinator/preparation.hpp"
#include "coordinator/status.hpp"
#include "run_fixture.hpp"
#include "storage/error.hpp"
#include "storage/file.hpp"

namespace hedgerow::coordinator {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class HolderTest : public RunFixture {
 protected:
  static wire::CoordinatorFile elsewhere() {
    return {.host = "far-away",
            .process = {77, 1},
            .term = 3,
            .endpoint = "",
            .started_at = "2026-11-21T12:00:00Z",
            .beat = 5,
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
  seconds waited_{0};
  std::function<void()> while_waiting_ = [] {};
  HolderWait wait_{[this](const std::string& text) { said_.push_back(text); },
                   [this](seconds pause) {
                     waited_ += pause;
                     while_waiting_();
                   }};
  Leftovers found_;
};

TEST_F(HolderTest, AnEmptyDirectoryOrADeadProcessOfThisHostIsFreeAtOnce) {
  EXPECT_EQ(refusal(), "");
  wire::CoordinatorFile dead = elsewhere();
  dead.host = wire::this_host();
  dead.process = {wire::this_process().pid, 1};  // the pid lives, but began at another time
  wire::write_coordinator_file(layout_, dead);
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(waited_, seconds(0));
}

TEST_F(HolderTest, AForeignHostIsWaitedForOnceAndThatIsSaid) {
  wire::write_coordinator_file(layout_, elsewhere());
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(waited_, kForeignPatience);
  EXPECT_THAT(said_,
              ElementsAre(AllOf(HasSubstr("far-away"), HasSubstr("pid 77"), HasSubstr("15 s"))));
  EXPECT_EQ(refusal(found_), "");
  EXPECT_EQ(waited_, kForeignPatience) << "it was found dead already";
  EXPECT_EQ(said_.size(), 1U);
}

TEST_F(HolderTest, ABeatOfAForeignHostRefusesAtOnce) {
  wire::write_coordinator_file(layout_, elsewhere());
  while_waiting_ = [this] {
    wire::CoordinatorFile alive = elsewhere();
    ++alive.beat;
    if (waited_ == seconds(4)) wire::write_coordinator_file(layout_, alive);
  };
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("is coordinated by pid 77 on far-away"), HasSubstr("term 3")));
  EXPECT_EQ(waited_, seconds(4));
}

TEST_F(HolderTest, ARunWhoseTokensAreMadeIsHeldAndShown) {
  storage::write_atomically(layout_.recipe(), "# only its presence matters here\n");
  EXPECT_EQ(read_status(layout_).state, "new");
  {
    const Preparation preparation(layout_);
    const RunStatus status = read_status(layout_);
    EXPECT_EQ(status.state, "preparing");
    EXPECT_EQ(status.pid, wire::this_process().pid);
    EXPECT_EQ(refusal(), "") << "our own";
    wire::CoordinatorFile other = *wire::read_coordinator_file(layout_.preparation_file());
    other.process = *wire::process_with(1);  // some other process that lives
    wire::write_coordinator_file(layout_.preparation_file(), other);
    EXPECT_THAT(refusal(), HasSubstr("is being prepared by pid 1 "));
  }
  EXPECT_EQ(read_status(layout_).state, "new");
  wire::write_coordinator_file(layout_.preparation_file(), elsewhere());
  EXPECT_EQ(read_status(layout_).state, "preparing") << "written a moment ago by another host";
  std::filesystem::last_write_time(
      layout_.preparation_file(),
      std::filesystem::file_time_type::clock::now() - std::chrono::minutes(5));
  EXPECT_EQ(read_status(layout_).state, "new") << "its host fell silent";
}

}  // namespace
}  // namespace hedgerow::coordinator
