// The MPI communicator, run by every rank of an mpirun of 2, of 3 and of 4. Each test is
// collective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace hedgerow::worker
