// The simulator's own parts, and that it sees what it is there to see.
#include <gtest/gtest.h>

#include <span>

#include "storage/base/error.hpp"
#include "tests/simulator/world.hpp"

namespace hedgerow::simulator {
namespace {

using coordinator::TaskId;
using storage::RunLayout;

TEST(Simulation, OfTheSameSeedGoesTheSameWay) {
  for (const std::uint64_t seed : {3U, 17U, 99U}) {
    World first(small_scenario(seed)), second(small_scenario(seed));
    first.run();
    second.run();
    EXPECT_EQ(first.trace_hash(), second.trace_hash()) << "seed " << seed;
    EXPECT_EQ(first.coverage().events, second.coverage().events) << "seed " << seed;
    EXPECT_GE(first.coverage().events, 300U) << "seed " << seed;
  }
}

// A file on the disk of a host that loses power is what was synced, or any part of the rest.
TEST(VirtualDisk, ForgetsOnlyWhatWasNotSynced) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    VirtualDisk disk;
    const auto file = disk.create_exclusive("/run/journal/000001.jsonl");
    disk.sync_directory("/run/journal");
    file->append("durable\n");
    file->sync();
    file->append("lost\n");
    disk.lose_power(random);
    const std::string text = *disk.content("/run/journal/000001.jsonl");
    EXPECT_EQ(std::string("durable\nlost\n").rfind(text, 0), 0U) << text;
    EXPECT_GE(text.size(), 8U);
  }
}

TEST(VirtualDisk, ANameIsDurableOnlyOnceItsDirectoryIsSynced) {
  int kept = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    VirtualDisk disk;
    std::string durable;
    disk.on_synced = [&](const std::string&, std::string_view bytes) { durable += bytes; };
    const auto file = disk.create_exclusive("/run/journal/000001.jsonl");
    file->append("record\n");
    file->sync();
    EXPECT_EQ(durable, "") << "its name may still be lost";
    disk.lose_power(random);
    kept += disk.exists("/run/journal/000001.jsonl") ? 1 : 0;
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 50);
}

TEST(VirtualDisk, ACrashBetweenRenameAndSyncLeavesEitherName) {
  int old_name = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    VirtualDisk disk;
    disk.put("/run/attempts/t1/x", "content");
    int steps = 0;
    disk.before_step = [&] {
      if (++steps == 2) throw Crash{};
    };
    EXPECT_THROW(disk.publish("/run/attempts/t1/x", "/run/blocks/x"), Crash);
    disk.lose_power(random);
    const bool is_old = disk.exists("/run/attempts/t1/x");
    EXPECT_NE(is_old, disk.exists("/run/blocks/x"));
    old_name += is_old ? 1 : 0;
  }
  EXPECT_GT(old_name, 0);
  EXPECT_LT(old_name, 50);
}

class OracleTest : public ::testing::Test {
 protected:
  OracleTest() {
    coordinator::Geometry geometry;
    geometry.num_layers = 2;
    geometry.num_shards = 1;
    write(coordinator::RunStarted{geometry, "test"});
  }

  void write(const coordinator::Event& event) {
    const nlohmann::json line = {{"seq", ++seq_}, {"event", event_to_json(event)}};
    oracle_.on_synced("/run/journal/000001.jsonl", line.dump() + "\n");
  }

  VirtualDisk disk_;
  Coverage coverage_;
  Oracle oracle_{RunLayout("/run"), disk_, coverage_};
  std::uint64_t seq_ = 0;
};

TEST_F(OracleTest, SeesACommitUnderAStaleToken) {
  write(coordinator::Granted{TaskId::capture(0, 0), 1, "w1", 1, ""});
  write(coordinator::LeaseRevoked{1, "expired"});
  EXPECT_THROW(write(coordinator::ShardCommitted{1, 0, {"hidden/b0001/s00000.t1.h5", 1, {}}}),
               BrokenPromise);
}

TEST_F(OracleTest, SeesATaskGrantedTwice) {
  write(coordinator::Granted{TaskId::capture(0, 0), 1, "w1", 1, ""});
  EXPECT_THROW(write(coordinator::Granted{TaskId::capture(0, 0), 2, "w2", 1, ""}), BrokenPromise);
}

TEST_F(OracleTest, SeesAWorkerThatHearsOfWhatIsNotDurable) {
  wire::Task task;
  task.fencing_token = 1;
  EXPECT_THROW(oracle_.on_sent_to_worker(wire::Grant{task}), BrokenPromise);
  EXPECT_THROW(oracle_.on_sent_to_worker(wire::Committed{1, "hidden/b0001/s00000.t1.h5"}),
               BrokenPromise);
}

TEST_F(OracleTest, SeesARestartThatLostADurableRecord) {
  write(coordinator::Granted{TaskId::capture(0, 0), 1, "w1", 1, ""});
  EXPECT_THROW(oracle_.on_replay({}), BrokenPromise);
}

TEST_F(OracleTest, SeesALivingStateThatIsNotItsJournals) {
  coordinator::State live = oracle_.state();
  const coordinator::SteadyClock clock;
  const coordinator::Leases leases(clock);
  EXPECT_NO_THROW(oracle_.on_turn(1, live, leases, true));
  live.last_token = 7;
  EXPECT_THROW(oracle_.on_turn(1, live, leases, false), BrokenPromise);
  live = oracle_.state();
  live.tasks.at(TaskId::transfer(0)).reason = "something";
  EXPECT_THROW(oracle_.on_turn(1, live, leases, true), BrokenPromise);
}

TEST_F(OracleTest, SeesTwoAttemptsThatPublishOneName) {
  disk_.put("/run/attempts/t1/x", "one");
  disk_.publish("/run/attempts/t1/x", "/run/blocks/x");
  disk_.put("/run/attempts/t2/x", "another");
  disk_.publish("/run/attempts/t2/x", "/run/blocks/x");
  const coordinator::SteadyClock clock;
  const coordinator::Leases leases(clock);
  EXPECT_THROW(oracle_.on_turn(1, oracle_.state(), leases, false), BrokenPromise);
}

TEST_F(OracleTest, SeesAnAttemptThatEndsBehindACheckpointThatItLeft) {
  const auto ends = [this](std::uint64_t token, std::int64_t committed, std::int64_t left) {
    const auto file = [token](std::int64_t step) {
      return storage::FileRecord{RunLayout::checkpoint(token, step, {1, 2}), 4, {1, 2}};
    };
    for (const std::int64_t step : {committed, left}) disk_.put("/run/" + file(step).name, "maps");
    write(coordinator::Granted{TaskId::transfer(0), token, "w1", 1, ""});
    write(coordinator::CheckpointCommitted{token, committed, file(committed)});
    write(coordinator::TaskFailed{token, storage::ErrorKind::kUnavailable, "killed"});
  };
  EXPECT_NO_THROW(ends(1, 8, 4));
  EXPECT_THROW(ends(2, 12, 16), BrokenPromise);
}

}  // namespace
}  // namespace hedgerow::simulator
