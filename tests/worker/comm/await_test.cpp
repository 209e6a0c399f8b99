#include "worker/comm/await.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Calls = std::vector<std::string>;

constexpr std::chrono::minutes kLong{10};

TEST(Await, ReturnsWhenItIsDoneAndGivesNothingUp) {
  int turns = 0;
  Calls given_up;
  await_completion("a call",
                   {.is_done = [&] { return ++turns == 300; },
                    .failure = [] { return std::string(); },
                    .give_up = [&](const std::string& why) { given_up.push_back(why); }},
                   kLong);
  EXPECT_EQ(turns, 300);
  EXPECT_THAT(given_up, IsEmpty());
}

TEST(Await, AnInterruptEndsTheWaitWithWhatItThrows) {
  Calls given_up;
  int looks = 0;
  const auto interrupt = [&] {
    if (++looks == 3) throw std::runtime_error("told to stop");
  };
  EXPECT_THROW(
      await_completion("a call",
                       {.is_done = [] { return false; },
                        .interrupt = interrupt,
                        .give_up = [&](const std::string& why) { given_up.push_back(why); }},
                       kLong),
      std::runtime_error);
  EXPECT_THAT(given_up, IsEmpty()) << "whoever interrupts gives up itself";
}

TEST(Await, AMissedDeadlineIsGivenUpOnceAndNamesTheCall) {
  Calls given_up;
  try {
    await_completion("rank 1 of 2: ncclSend with rank 0",
                     {.is_done = [] { return false; },
                      .give_up = [&](const std::string& why) { given_up.push_back(why); }},
                     std::chrono::milliseconds(20));
    FAIL() << "what is never done was done";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_STREQ(
        error.what(),
        "rank 1 of 2: ncclSend with rank 0 did not complete within 20 ms: the peer is lost "
        "or stopped");
    EXPECT_THAT(given_up, ElementsAre(error.what()));
  }
}

TEST(Await, AFailureIsGivenUpAtOnceAlsoWhenItLooksDone) {
  Calls given_up;
  try {
    await_completion("a call",
                     {.is_done = [] { return true; },
                      .failure = [] { return std::string("remote error"); },
                      .give_up = [&](const std::string& why) { given_up.push_back(why); }},
                     kLong);
    FAIL() << "a failure was taken for a success";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("a call failed: remote error"));
    EXPECT_THAT(given_up, ElementsAre(error.what()));
  }
}

TEST(Await, WhatTheQuestionThrowsEndsTheWaitAsItIs) {
  Calls given_up;
  EXPECT_THROW(
      await_completion("a call",
                       {.is_done = []() -> bool { throw std::logic_error("wrong size"); },
                        .give_up = [&](const std::string& why) { given_up.push_back(why); }},
                       kLong),
      std::logic_error);
  EXPECT_THAT(given_up, IsEmpty());
}

}  // namespace
}  // namespace hedgerow::worker
