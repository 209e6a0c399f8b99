// The MPI communicator, run by every rank of an mpirun of 2, of 3 and of 4. Each test is
// collective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "worker/comm/communicator.hpp"

namespace hedgerow::worker {
namespace {

TEST(Mpi, CollectivesGiveEveryRankTheSameBytes) {
  const auto communicator = make_mpi_communicator();
  ASSERT_GE(communicator->world_size(), 2) << "run me under mpirun";
  const int rank = communicator->rank();
  const std::vector<std::byte> own = {static_cast<std::byte>(rank),
                                      static_cast<std::byte>(2 * rank)};
  const auto all = communicator->all_gather(own);
  for (int i = 0; i < communicator->world_size(); ++i) {
    EXPECT_EQ(all[2 * static_cast<std::size_t>(i) + 1], static_cast<std::byte>(2 * i));
  }
  for (int root = 0; root < communicator->world_size(); ++root) {
    std::vector<std::byte> bytes(3'000'000, static_cast<std::byte>(rank == root ? 42 + root : 0));
    communicator->broadcast(bytes, root);
    EXPECT_THAT(bytes, testing::Each(static_cast<std::byte>(42 + root)));
  }
  communicator->barrier();
}

// Too large to be sent before somebody receives it.
TEST(Mpi, ADroppedMessagesMemoryIsKeptUntilItIsThrough) {
  constexpr std::size_t kBytes = 20'000'000;
  constexpr int kLaterCalls = 10;
  const auto communicator = make_mpi_communicator();
  if (communicator->rank() == 0) {
    auto bytes = std::make_shared<std::vector<std::byte>>(kBytes, std::byte(5));
    const std::weak_ptr<std::vector<std::byte>> memory = bytes;
    auto message = communicator->start_send(*bytes, bytes, 1, 7);
    EXPECT_FALSE(message->is_done());
    bytes.reset();
    message.reset();
    communicator->barrier();
    EXPECT_FALSE(memory.expired()) << "nobody has received it";
    // The library hears of the receiver's end in some later call.
    for (int i = 0; i < kLaterCalls; ++i) communicator->barrier();
    EXPECT_TRUE(memory.expired());
    return;
  }
  communicator->barrier();
  if (communicator->rank() == 1) {
    std::vector<std::byte> got(kBytes);
    communicator->receive(got, 0, 7);
    EXPECT_EQ(std::ranges::count(got, std::byte(5)), std::ssize(got));
  }
  for (int i = 0; i < kLaterCalls; ++i) communicator->barrier();
}

}  // namespace
}  // namespace hedgerow::worker
