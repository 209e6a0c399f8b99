#include "worker/task/task_context.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "storage/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::worker {
namespace {

namespace fs = std::filesystem;

TEST(AttemptPath, IsAFileOfTheAttemptWhateverTheNameSays) {
  const tests::TemporaryDirectory run;
  const storage::RunLayout layout(run.path());
  EXPECT_EQ(attempt_path(layout, 4, "evaluate/teacher.t4.json"),
            run.path() / "attempts/t4/teacher.t4.json");
  EXPECT_EQ(attempt_path(layout, 4, "evaluate/../../../x.t4.json"),
            run.path() / "attempts/t4/x.t4.json");
  EXPECT_THROW((void)attempt_path(layout, 4, "evaluate/.."), storage::Error);
}

// Somebody who may write into the run directory made the attempt's folder, or a file in it, first.
TEST(AttemptPath, LinksThatLeadOutOfTheRunAreRefused) {
  const tests::TemporaryDirectory run, outside;
  const storage::RunLayout layout(run.path());
  fs::create_directories(run / "attempts" / "t4");
  fs::create_symlink(outside / "new", run / "attempts" / "t4" / "a");
  EXPECT_THROW((void)attempt_path(layout, 4, "a"), storage::Error);
  fs::create_directory_symlink(outside.path(), run / "attempts" / "t5");
  EXPECT_THROW((void)attempt_path(layout, 5, "a"), storage::Error);
}

}  // namespace
}  // namespace hedgerow::worker
