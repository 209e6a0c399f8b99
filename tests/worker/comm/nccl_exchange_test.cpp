// NCCL on one GPU, where it takes one rank: the communicator begins and ends, data crosses it, and
// a peer that does not come is an error in time. Between several GPUs the tree's bytes are held by
// the tests of the host's exchange, whose place NCCL takes.
#include "worker/comm/nccl_exchange.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "storage/base/error.hpp"
#include "tests/worker/comm/rank_threads.hpp"
#include "worker/comm/tree_reduce.hpp"

namespace hedgerow::worker {
namespace {

using testing::HasSubstr;

const at::Device kGpu(at::kCUDA, 0);

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (nccl::version() == 0) GTEST_SKIP() << "this build has no NCCL";
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU is visible";
  }
};

at::Tensor numbers(std::int64_t count) {
  return at::arange(count, at::TensorOptions(at::kFloat).device(kGpu)) / 3;
}

TEST_F(Nccl, OneRankExchangesWithItself) {
  const auto alone = make_single_communicator();
  const auto exchange = nccl::connect(*alone, kGpu);
  EXPECT_THAT(exchange->name(), testing::StartsWith("NCCL 2."));
  for (const std::int64_t count : {1, 1000, 20'000'000}) {
    const at::Tensor own = numbers(count), other = at::zeros_like(own);
    exchange->exchange(own, other, 0);
    EXPECT_TRUE(other.equal(own)) << count << " numbers";
  }
}

TEST_F(Nccl, OneRankThatAsksForItHasACommunicatorAndATree) {
  const auto alone = make_single_communicator();
  const auto exchange = make_tensor_exchange(*alone, kGpu, "nccl");
  EXPECT_THAT(exchange->name(), testing::StartsWith("NCCL "));
  EXPECT_EQ(make_tensor_exchange(*alone, kGpu, "auto")->name(), "MPI");
  TreeReducer reducer(*alone, *exchange, 4);
  for (int i = 0; i < 4; ++i) reducer.add(numbers(257));
  EXPECT_TRUE(reducer.finish().equal(numbers(257) * 4));
}

TEST_F(Nccl, TwoRanksOnOneGpuGoThroughTheHostWithTheBytesOfOne) {
  const auto leaf = [](int index) { return numbers(257) * (index + 1) / 7; };
  at::Tensor expected;
  for (const int world_size : {1, 2}) {
    run_on_threads(world_size, [&](Communicator& communicator) {
      const auto exchange = make_tensor_exchange(communicator, kGpu, "auto");
      EXPECT_EQ(exchange->name(), "MPI");
      TreeReducer reducer(communicator, *exchange, 8);
      for (int i = 0; i < reducer.num_own_leaves(); ++i)
        reducer.add(leaf(reducer.first_leaf() + i));
      const at::Tensor sum = reducer.finish();
      if (world_size == 1) expected = sum;
      EXPECT_TRUE(sum.equal(expected)) << "rank " << communicator.rank();
    });
  }
}

TEST_F(Nccl, APeerThatDoesNotConnectIsAnErrorWithinTheDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_on_threads(
        2,
        [](Communicator& communicator) {
          std::vector<std::byte> id(128);
          if (communicator.rank() == 1) return communicator.broadcast(id, 0);  // and no more
          static_cast<void>(nccl::connect(communicator, kGpu));
        },
        std::chrono::seconds(3));
    FAIL() << "two ranks met without the second";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 of 2: ncclCommInitRankConfig did not complete"));
    EXPECT_THAT(error.what(), HasSubstr("finetune.exchange = \"mpi\""));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace hedgerow::worker
