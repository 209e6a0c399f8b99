// The worker's half of the protocol, frame by frame, without a socket.
#include <gtest/gtest.h>

#include <algorithm>

#include "worker/client/coordinator_session.hpp"

namespace hedgerow::worker {
namespace {

using std::chrono::seconds;
using Time = CoordinatorSession::Time;

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() { session_.receive(wire::encode(wire::Welcome{1, 30, 5, false}), now_); }

  [[nodiscard]] bool says(std::string_view type) {
    const std::vector<std::string> frames = session_.tick(now_);
    return std::any_of(frames.begin(), frames.end(), [&](const std::string& frame) {
      return wire::type_of(wire::decode(frame)) == type;
    });
  }

  Time now_{std::chrono::hours(1)};
  CoordinatorSession session_{{.hello = {}, .endpoint = "tcp://127.0.0.1:1"}, now_};
};

// Its answer would be of a token that is nobody's any more, and what follows would wait for ever.
TEST_F(SessionTest, ATaskThatLostItsLeaseTakesItsUnansweredCheckpointWithIt) {
  wire::Task task;
  task.fencing_token = 2;
  session_.begin_task(task);
  session_.checkpointed({"attempts/t2/checkpoint.s6", 10, {1, 2}}, 6, now_);
  EXPECT_TRUE(says("checkpointed"));
  session_.receive(wire::encode(wire::HeartbeatAck{2, false}), now_);
  EXPECT_TRUE(session_.lease_lost());
  session_.end_task();
  const auto request = session_.submit(wire::Request{session_.worker(), -1}, "", now_);
  EXPECT_TRUE(says("request"));
  session_.receive(wire::encode(wire::Fenced{2, "late"}), now_);
  EXPECT_FALSE(request->answered);
  session_.receive(wire::encode(wire::Idle{300}), now_);
  EXPECT_TRUE(request->answered);
}

TEST_F(SessionTest, NothingIsDueBeforeNextDue) {
  EXPECT_TRUE(says("heartbeat"));
  const Time due = session_.next_due();
  ASSERT_GT(due, now_);
  now_ = due - std::chrono::milliseconds(1);
  EXPECT_TRUE(session_.tick(now_).empty());
  EXPECT_EQ(session_.next_due(), due);
  now_ = due;
  EXPECT_TRUE(says("heartbeat"));
}

// Else every lease shorter than the pause between two heartbeats would run out under its holder.
TEST_F(SessionTest, ACoordinatorWithShortLeasesHearsMoreHeartbeats) {
  EXPECT_TRUE(says("heartbeat"));
  session_.receive(wire::encode(wire::Welcome{1, 4, 1, false}), now_);
  EXPECT_TRUE(says("heartbeat"));
  now_ += std::chrono::milliseconds(999);
  EXPECT_FALSE(says("heartbeat"));
  now_ += std::chrono::milliseconds(1);
  EXPECT_TRUE(says("heartbeat"));
}

TEST_F(SessionTest, ASilentCoordinatorIsGreetedAgainWithALongerPauseEachTime) {
  now_ += seconds(11);
  EXPECT_TRUE(says("hello"));
  EXPECT_TRUE(session_.wants_look(now_));
  EXPECT_FALSE(session_.wants_look(now_)) << "once a second";
  now_ += seconds(1);
  EXPECT_TRUE(says("hello"));
  now_ += seconds(1);
  EXPECT_FALSE(says("hello"));
  session_.found(2, "tcp://127.0.0.1:2", now_);
  EXPECT_TRUE(says("hello")) << "a new term is greeted at once";
  EXPECT_EQ(session_.endpoint(), "tcp://127.0.0.1:2");
}

// A coordinator that was killed and started again would else be greeted at the next heartbeat, and
// a worker that waits for the commit of a shard stand still until then.
TEST_F(SessionTest, ARestartedCoordinatorIsGreetedWhenItsConnectionIsThereAndAskedAgain) {
  const auto request = session_.submit(wire::Request{session_.worker(), -1}, "", now_);
  EXPECT_TRUE(says("request"));
  session_.reconnected(now_);
  EXPECT_TRUE(says("hello"));
  session_.receive(wire::encode(wire::Welcome{2, 30, 5, false}), now_);
  EXPECT_TRUE(says("request"));
  EXPECT_FALSE(request->answered);
}

}  // namespace
}  // namespace hedgerow::worker
