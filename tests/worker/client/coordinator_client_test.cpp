// The worker's end of the wire where no coordinator answers.
#include "worker/client/coordinator_client.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "coordinator/wire/coordinator_file.hpp"
#include "coordinator/wire/messages.hpp"
#include "storage/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::worker {
namespace {

using std::chrono::milliseconds;

TEST(CoordinatorClient, AStoppedWorkerDoesNotWaitOutTheOrphanTimeout) {
  const tests::TemporaryDirectory run;
  const std::atomic<bool> stop{true};
  CoordinatorClient client({.layout = storage::RunLayout(run.path()),
                            .endpoint = "ipc://" + (run / "nobody").string(),
                            .hello = {},
                            .orphan_timeout = std::chrono::hours(1),
                            .stop_timeout = milliseconds(100),
                            .holds = 7,
                            .stop_signal = &stop});
  try {
    client.released("SIGTERM");
    FAIL() << "nobody can have answered";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUnavailable) << error.what();
  }
  EXPECT_TRUE(client.should_stop());
}

TEST(CoordinatorClient, AResultOverTheCapOfAMessageFailsItsTaskAtOnce) {
  const tests::TemporaryDirectory run;
  CoordinatorClient client({.layout = storage::RunLayout(run.path()),
                            .endpoint = "ipc://" + (run / "nobody").string(),
                            .hello = {},
                            .orphan_timeout = std::chrono::hours(1),
                            .holds = 7});
  try {
    client.done({}, {{"figures", std::string(wire::kMaxMessageBytes, '1')}});
    FAIL() << "nobody would take it";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kInternal);
    EXPECT_NE(std::string(error.what()).find("over the cap of 65536"), std::string::npos)
        << error.what();
  }
}

// A coordinator.json of a later term may hold anything.
TEST(CoordinatorClient, AnAddressThatCannotBeUsedIsACoordinatorOutOfReachAndNoCrash) {
  const tests::TemporaryDirectory run;
  wire::CoordinatorFile file;
  file.host = "elsewhere";
  file.term = 2;
  file.endpoint = "no such transport";
  wire::write_coordinator_file(storage::RunLayout(run.path()), file);
  CoordinatorClient client({.layout = storage::RunLayout(run.path()),
                            .endpoint = "ipc://" + (run / "nobody").string(),
                            .hello = {},
                            .orphan_timeout = milliseconds(1500)});
  EXPECT_FALSE(client.join().has_value());
}

}  // namespace
}  // namespace hedgerow::worker
