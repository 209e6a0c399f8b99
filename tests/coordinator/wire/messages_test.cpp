#include "coordinator/wire/messages.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace hedgerow::wire {
namespace {

const WorkerId kWorker{"node7-0", 3};

storage::FileRecord file() { return {"hidden/b0001/s00002.t41.h5", 123, {0x1234, 0xabcd}}; }

Task task() {
  Task task;
  task.kind = TaskKind::kTransfer;
  task.fencing_token = (1ULL << 63) + 5;
  task.block = 3;
  task.first_layer = 15;
  task.num_layers = 5;
  task.sequences_per_shard = 64;
  task.inputs = {file(), file()};
  task.resume = file();
  task.seed = 99;
  task.memory_bytes = 1ULL << 41;
  return task;
}

Progress progress() {
  Progress progress;
  progress.phase = "training";
  progress.step = 17;
  progress.loss = 1e-300;
  progress.peak_memory = {1ULL << 33, 1ULL << 40, (1ULL << 40) + 1};
  return progress;
}

std::vector<Message> one_of_each() {
  Hello hello{kWorker, "0.1.0", "0.1.0+abc", "node7", "Xeon", 42, 2, 1ULL << 40, true, "bf16", task(), 3};
  return {
      hello,
      Request{kWorker, -1},
      Heartbeat{kWorker, 41, progress()},
      Checkpointed{kWorker, 41, file(), 10},
      ShardReady{kWorker, 41, 2, file()},
      Done{kWorker, 41, {file()}, {{"layers", {{{"layer", 1}}}}}},
      Failed{kWorker, 41, storage::ErrorKind::kCorrupt, "text with \"quotes\" and \n", {"a", "b"}},
      Released{kWorker, 41, "SIGTERM"},
      Goodbye{kWorker},
      Welcome{7, 30, 5, true},
      Refused{"no"},
      WhoAreYou{7},
      Grant{task()},
      Idle{300},
      HeartbeatAck{41, false},
      Committed{41, "x"},
      Fenced{41, "late"},
      Stop{"done", true}};
}

TEST(Messages, EveryTypeSurvivesTheWire) {
  const std::vector<Message> messages = one_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].index(), i) << "one of each, in the variant's order";
    const std::string frame = encode(messages[i]);
    const Message back = decode(frame);
    EXPECT_EQ(back.index(), i) << type_of(messages[i]);
    EXPECT_EQ(encode(back), frame) << type_of(messages[i]);
  }
  EXPECT_EQ(std::get<Grant>(decode(encode(Grant{task()}))).task, task());
  EXPECT_EQ(std::get<Heartbeat>(decode(encode(messages[2]))).progress.peak_memory,
            progress().peak_memory);
}

TEST(Messages, AMeasureThatIsNotANumberStaysOne) {
  Progress bad = progress();
  bad.loss = std::nan("");
  const auto back = std::get<Heartbeat>(decode(encode(Heartbeat{kWorker, 1, bad})));
  EXPECT_TRUE(std::isnan(back.progress.loss));
}

TEST(Messages, ErrorTextsNeedNotBeUtf8) {
  const std::string frame =
      encode(Failed{kWorker, 1, storage::ErrorKind::kInternal, "bytes \xff\xfe", {}});
  EXPECT_NE(std::get<Failed>(decode(frame)).message.find("bytes"), std::string::npos);
}

void expect_refused(const std::string& frame, const std::string& words) {
  try {
    static_cast<void>(decode(frame));
    FAIL() << "accepted: " << frame;
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

std::string framed(const std::string& json) { return encode(Stop{""}).substr(0, 8) + json; }

TEST(Messages, WhatIsWrongIsNamed) {
  expect_refused("", "magic");
  expect_refused("GET / HTTP/1.1\r\n", "magic");
  std::string other = encode(Stop{"x"});
  other[4] = 9;
  expect_refused(other, "protocol 9");
  EXPECT_EQ(protocol_of(other), 9U);
  EXPECT_EQ(protocol_of("HGRW"), std::nullopt);
  expect_refused(std::string(kMaxMessageBytes + 1, 'x'), "over the cap");
  expect_refused(framed("{\"type\":\"shutdown\"}"), "unknown type 'shutdown'");
  expect_refused(framed("[]"), "not an object");
  expect_refused(framed("{\"type\":\"stop\"}"), "'reason' is missing");
  expect_refused(framed("{\"type\":\"stop\",\"reason\":3}"), "'reason' must be a string");
  expect_refused(framed("{\"type\":\"who_are_you\",\"term\":-1}"), "'term'");
  expect_refused(framed("{\"type\":\"who_are_you\",\"term\":1.5}"), "'term'");
  expect_refused(framed("{\"type\":\"idle\",\"retry_milliseconds\":99999999999}"), "32 bits");
  expect_refused(framed(std::string(100, '[')), "");
  expect_refused(framed("{\"type\":\"stop\",\"reason\":\"\",\"deep\":" + std::string(40, '[') +
                        std::string(40, ']') + "}"),
                 "nested deeper");
}

TEST(Messages, AnOversizedOneIsNotSent) {
  EXPECT_THROW(static_cast<void>(encode(Stop{std::string(kMaxMessageBytes, 'x')})), storage::Error);
}

// Damage never crashes and never turns into an exception of another kind. Some damaged frames are
// still messages (a flipped digit): then they encode again.
TEST(Messages, DamagedFramesAreRefusedOrStillMessages) {
  std::mt19937 random(20261121);
  const std::vector<Message> messages = one_of_each();
  for (int round = 0; round < 10000; ++round) {
    std::string frame = encode(messages[random() % messages.size()]);
    if (round % 2 == 0) frame.resize(random() % frame.size());
    const std::size_t flips = 1 + random() % 3;
    for (std::size_t i = 0; i < flips && !frame.empty(); ++i) {
      frame[random() % frame.size()] ^= static_cast<char>(1U << (random() % 8));
    }
    try {
      static_cast<void>(encode(decode(frame)));
    } catch (const storage::Error& error) {
      ASSERT_EQ(error.kind(), storage::ErrorKind::kCorrupt)
          << "round " << round << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace hedgerow::wire
