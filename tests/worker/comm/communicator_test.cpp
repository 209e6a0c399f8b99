#include "worker/comm/communicator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>

#include "storage/base/error.hpp"
#include "tests/worker/comm/rank_threads.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

using SharedBytes = std::shared_ptr<std::vector<std::byte>>;

SharedBytes word(int value) {
  return std::make_shared<std::vector<std::byte>>(3, std::byte(value));
}

TEST(Communicator, MessagesOfOneTagKeepTheirOrderAndTagsDoNotMix) {
  run_on_threads(2, [](Communicator& communicator) {
    if (communicator.rank() == 0) {
      communicator.send(bytes_of({1}), 1, 7);
      communicator.send(bytes_of({2}), 1, 8);
      communicator.send(bytes_of({3}), 1, 7);
    } else {
      std::vector<std::byte> got(1);
      communicator.receive(got, 0, 8);
      EXPECT_EQ(got, bytes_of({2}));
      communicator.receive(got, 0, 7);
      EXPECT_EQ(got, bytes_of({1}));
      communicator.receive(got, 0, 7);
      EXPECT_EQ(got, bytes_of({3}));
    }
  });
}

TEST(Communicator, MessagesThatWereStartedArriveInTheirOrderWhileOthersAreSent) {
  run_on_threads(2, [](Communicator& communicator) {
    if (communicator.rank() == 0) {
      std::vector<std::unique_ptr<Message>> sent;
      for (int i = 0; i < 4; ++i) {
        const SharedBytes bytes = word(i);
        sent.push_back(communicator.start_send(*bytes, bytes, 1, 7));
      }
      for (const auto& message : sent) message->wait();
      return;
    }
    const SharedBytes first_bytes = word(-1), second_bytes = word(-1);
    const auto first = communicator.start_receive(*first_bytes, first_bytes, 0, 7);
    const auto second = communicator.start_receive(*second_bytes, second_bytes, 0, 7);
    first->wait();
    EXPECT_EQ(*first_bytes, *word(0));
    second->wait();
    EXPECT_EQ(*second_bytes, *word(1));
    std::vector<std::byte> third(3);
    communicator.receive(third, 0, 7);
    EXPECT_EQ(third, *word(2));
    communicator.receive(third, 0, 7);
    EXPECT_EQ(third, *word(3));
  });
}

TEST(Communicator, ADroppedMessagesMemoryIsKeptUntilItIsThrough) {
  run_on_threads(2, [](Communicator& communicator) {
    if (communicator.rank() == 0) {
      SharedBytes bytes = word(5);
      const std::weak_ptr<std::vector<std::byte>> memory = bytes;
      auto message = communicator.start_send(*bytes, bytes, 1, 7);
      EXPECT_FALSE(message->is_done()) << "nobody has received it";
      bytes.reset();
      message.reset();
      EXPECT_FALSE(memory.expired());
      communicator.send({}, 1, 8);
      communicator.barrier();
      EXPECT_TRUE(memory.expired());
    } else {
      std::vector<std::byte> got(3);
      communicator.receive({}, 0, 8);  // when the message was dropped
      communicator.receive(got, 0, 7);
      EXPECT_EQ(got, *word(5));
      communicator.barrier();
    }
  });
}

// The memory is the sender's again, though nobody has received the message.
TEST(Communicator, ASentMessagesMemoryMayBeWrittenToOnceItWasWaitedFor) {
  run_on_threads(2, [](Communicator& communicator) {
    if (communicator.rank() == 0) {
      const SharedBytes bytes = word(5);
      communicator.start_send(*bytes, bytes, 1, 7)->wait();
      *bytes = *word(6);
      communicator.send({}, 1, 8);
    } else {
      std::vector<std::byte> got(3);
      communicator.receive({}, 0, 8);
      communicator.receive(got, 0, 7);
      EXPECT_EQ(got, *word(5));
    }
  });
}

TEST(Communicator, GroupsOfRanksHaveCollectivesOfTheirOwn) {
  run_on_threads(6, [](Communicator& communicator) {
    // As a mesh of 2 x 3: pipelines 0 1 2 and 3 4 5, stages 0 3, 1 4, 2 5.
    const int rank = communicator.rank();
    const auto pipeline =
        make_group(communicator, {rank / 3 * 3, rank / 3 * 3 + 1, rank / 3 * 3 + 2});
    const auto stage = make_group(communicator, {rank % 3, rank % 3 + 3});
    EXPECT_EQ(pipeline->rank(), rank % 3);
    EXPECT_EQ(stage->world_size(), 2);
    const std::array<std::byte, 1> own = {std::byte(rank)};
    const auto base = std::byte(rank / 3 * 3);
    for (int round = 0; round < 3; ++round) {
      const auto of_pipeline = pipeline->all_gather(own);
      EXPECT_EQ(of_pipeline.front(), base);
      EXPECT_EQ(of_pipeline.size(), 3U);
      const auto of_stage = stage->all_gather(own);
      EXPECT_EQ(of_stage.back(), std::byte(rank % 3 + 3));
      EXPECT_EQ(communicator.all_gather(own).size(), 6U);
    }
  });
}

TEST(Communicator, BroadcastReachesEveryRankFromAnyRootAlsoWhenTheWorldIsNoPowerOfTwo) {
  for (const int world_size : {1, 2, 3, 4, 5, 8}) {
    for (int root = 0; root < world_size; ++root) {
      run_on_threads(world_size, [&](Communicator& communicator) {
        auto bytes = communicator.rank() == root ? bytes_of({4, 5, 6}) : bytes_of({0, 0, 0});
        communicator.broadcast(bytes, root);
        EXPECT_EQ(bytes, bytes_of({4, 5, 6})) << "world " << world_size << ", root " << root;
      });
    }
  }
}

TEST(Communicator, AllGatherIsInRankOrderOnEveryRank) {
  run_on_threads(3, [](Communicator& communicator) {
    const int rank = communicator.rank();
    EXPECT_EQ(communicator.all_gather(bytes_of({rank, 10 + rank})),
              bytes_of({0, 10, 1, 11, 2, 12}));
  });
}

TEST(Communicator, NobodyLeavesABarrierBeforeTheLastHasCome) {
  std::atomic<int> arrived = 0;
  run_on_threads(4, [&](Communicator& communicator) {
    ++arrived;
    communicator.barrier();
    EXPECT_EQ(arrived.load(), 4);
  });
}

TEST(Communicator, ASilentPeerIsAnErrorWithinTheDeadlineThatNamesIt) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_on_threads(
        2,
        [](Communicator& communicator) {
          std::vector<std::byte> bytes(1);
          if (communicator.rank() == 0) communicator.receive(bytes, 1, 0);
          if (communicator.rank() == 1) communicator.receive(bytes, 0, 0);
        },
        std::chrono::milliseconds(50));
    FAIL() << "a receive without a send came back";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), testing::HasSubstr("from rank"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Communicator, ARankThatIsInterruptedWhileItWaitsIsLostToTheOthersAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> interrupted = 0, lost = 0;
  run_on_threads(3, [&](Communicator& communicator) {
    std::vector<std::byte> bytes(1);
    if (communicator.rank() == 0) {
      communicator.set_interrupt([] { throw std::runtime_error("told to stop"); });
      EXPECT_THROW(communicator.receive(bytes, 1, 0), std::runtime_error);
      EXPECT_THROW(communicator.send(bytes, 1, 0), Error) << "it gave the others up";
      ++interrupted;
      return;
    }
    try {
      communicator.receive(bytes, 0, 0);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 is lost"));
      ++lost;
    }
  });
  EXPECT_EQ(interrupted, 1);
  EXPECT_EQ(lost, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kCommDeadline / 2);
}

TEST(Communicator, APatientRankWaitsForASlowOneAndIsImpatientAfterwards) {
  run_on_threads(
      2,
      [](Communicator& communicator) {
        std::vector<std::byte> bytes(1);
        if (communicator.rank() == 1) {  // slow: first waits its own deadline out for nothing
          communicator.set_deadline(std::chrono::milliseconds(200));
          EXPECT_THROW(communicator.receive(bytes, 0, 7), Error);
          communicator.send(bytes, 0, 0);
          return;
        }
        {
          const DeadlineScope timeout(communicator);
          communicator.receive(bytes, 1, 0);
        }
        EXPECT_EQ(communicator.set_deadline(kCommDeadline), std::chrono::milliseconds(20));
      },
      std::chrono::milliseconds(20));
}

TEST(Communicator, ARankThatThrowsEndsTheOthersLongBeforeTheDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(run_on_threads(3,
                              [](Communicator& communicator) {
                                if (communicator.rank() == 1)
                                  throw std::runtime_error("out of memory, say");
                                communicator.barrier();
                              }),
               std::exception);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kCommDeadline / 2);
}

TEST(Communicator, ASizeThatDiffersIsABugAndNotATruncatedMessage) {
  try {
    run_on_threads(2, [](Communicator& communicator) {
      std::vector<std::byte> bytes(communicator.rank() == 0 ? 4 : 3);
      if (communicator.rank() == 0) communicator.send(bytes, 1, 0);
      if (communicator.rank() == 1) communicator.receive(bytes, 0, 0);
    });
    FAIL() << "3 of 4 bytes were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal) << error.what();
  }
}

TEST(Communicator, ARankAloneNeedsNoPeer) {
  const auto communicator = make_single_communicator();
  auto bytes = bytes_of({9});
  communicator->broadcast(bytes, 0);
  communicator->barrier();
  EXPECT_EQ(communicator->all_gather(bytes), bytes_of({9}));
  EXPECT_THROW(communicator->send(bytes, 1, 0), Error);
}

}  // namespace
}  // namespace hedgerow::worker
