// The MPI communicator, run by every rank of an mpirun of 2 and of 4. Each test is collective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/comm/communicator.hpp"
#include "worker/comm/tree_reduce.hpp"

namespace hedgerow::worker {
namespace {

std::vector<float> leaf(int index) {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 1.0F / static_cast<float>(
                           1 + (i * 7919U + static_cast<std::size_t>(index) * 104729U) % 10007U);
  }
  return values;
}

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

TEST(Mpi, TheTreeGivesTheBytesOfOneProcess) {
  constexpr int kLeaves = 16;
  const auto alone = make_single_communicator();
  TreeReducer single(*alone, kLeaves);
  for (int i = 0; i < kLeaves; ++i) single.add(leaf(i));
  const auto expected = single.finish();

  const auto communicator = make_mpi_communicator();
  TreeReducer reducer(*communicator, kLeaves);
  for (int i = 0; i < reducer.num_own_leaves(); ++i) reducer.add(leaf(reducer.first_leaf() + i));
  EXPECT_EQ(reducer.finish(), expected);
}

}  // namespace
}  // namespace hedgerow::worker
