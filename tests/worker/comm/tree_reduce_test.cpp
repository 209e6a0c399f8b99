#include "worker/comm/tree_reduce.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>

#include "storage/base/error.hpp"
#include "tests/worker/comm/rank_threads.hpp"

namespace hedgerow::worker {
namespace {

constexpr std::size_t kLength = 257;

// Magnitudes from 2^-12 to 2^11, so that another order of additions shows in the last bits.
std::vector<float> leaf(int index) {
  std::vector<float> values(kLength);
  std::uint32_t state = 12345U + 977U * static_cast<std::uint32_t>(index);
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    const float mantissa = static_cast<float>(state >> 8) / 16777216.0F - 0.5F;
    value = std::ldexp(mantissa, static_cast<int>(state % 24U) - 12);
  }
  return values;
}

at::Tensor tensor_of(const std::vector<float>& values) { return at::tensor(values, at::kFloat); }

std::vector<std::uint32_t> bits(const at::Tensor& tensor) {
  const float* values = tensor.const_data_ptr<float>();
  std::vector<std::uint32_t> list;
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    list.push_back(std::bit_cast<std::uint32_t>(values[i]));
  return list;
}

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> list;
  for (const float value : values) list.push_back(std::bit_cast<std::uint32_t>(value));
  return list;
}

std::vector<float> operator+(std::vector<float> left, const std::vector<float>& right) {
  for (std::size_t i = 0; i < kLength; ++i) left[i] += right[i];
  return left;
}

// With plain numbers, one after the other: what a sum of tensors must be on every device. A node of
// `width` leaves, of which those below num_leaves are there.
std::vector<float> tree_sum(int first, int width, int num_leaves) {
  if (width == 1) return leaf(first);
  const int middle = first + width / 2;
  const auto left = tree_sum(first, width / 2, num_leaves);
  return middle < num_leaves ? left + tree_sum(middle, width / 2, num_leaves) : left;
}

// The sums of two steps have these bytes on every rank.
void expect_sum(int world_size, int num_leaves, const std::vector<float>& expected) {
  run_on_threads(world_size, [&](Communicator& communicator) {
    const auto exchange = make_host_exchange(communicator);
    TreeReducer reducer(communicator, *exchange, num_leaves);
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < reducer.num_own_leaves(); ++i)
        reducer.add(tensor_of(leaf(reducer.first_leaf() + i)));
      EXPECT_EQ(bits(reducer.finish()), bits(expected))
          << num_leaves << " leaves, " << world_size << " ranks, rank " << communicator.rank()
          << ", step " << step;
    }
  });
}

TEST(TreeReduce, AnyNumberOfRanksGivesTheBytesOfTheTreeForAnyNumberOfLeaves) {
  for (const int num_leaves : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 24}) {
    const auto expected = tree_sum(0, 32, num_leaves);
    for (const int world_size : {1, 2, 3, 4, 5, 8, 24})
      if (world_size <= num_leaves) expect_sum(world_size, num_leaves, expected);
  }
}

TEST(TreeReduce, TheOrderOfAdditionsIsThisOne) {
  const auto pair = [](int first) { return leaf(first) + leaf(first + 1); };
  const auto four = pair(0) + pair(2);
  for (const int world_size : {1, 2, 3, 4}) {
    expect_sum(world_size, 8, four + (pair(4) + pair(6)));
    expect_sum(world_size, 7, four + (pair(4) + leaf(6)));
    expect_sum(world_size, 6, four + pair(4));
    expect_sum(world_size, 5, four + leaf(4));
  }
}

TEST(TreeReduce, TheTestCanFailARunningSumHasOtherBytes) {
  for (const int num_leaves : {6, 8}) {
    std::vector<float> running = leaf(0);
    for (int i = 1; i < num_leaves; ++i) running = running + leaf(i);
    EXPECT_NE(bits(running), bits(tree_sum(0, 8, num_leaves))) << num_leaves;
  }
}

TEST(TreeReduce, RanksOwnRunsOfLeavesThatDifferByOneAtMost) {
  for (const int num_leaves : {5, 6, 24, 31}) {
    std::atomic<int> num_owned = 0;
    run_on_threads(5, [&](Communicator& communicator) {
      const auto exchange = make_host_exchange(communicator);
      const TreeReducer reducer(communicator, *exchange, num_leaves);
      num_owned += reducer.num_own_leaves();
      EXPECT_THAT(reducer.num_own_leaves() - num_leaves / 5, testing::AnyOf(0, 1));
      EXPECT_EQ(reducer.has_unequal_shares(), num_leaves % 5 != 0);
    });
    EXPECT_EQ(num_owned, num_leaves);
  }
}

TEST(TreeReduce, MoreRanksThanMicroBatchesAreRefusedBeforeAnyWork) {
  run_on_threads(3, [](Communicator& communicator) {
    const auto exchange = make_host_exchange(communicator);
    try {
      static_cast<void>(TreeReducer(communicator, *exchange, 2));
      ADD_FAILURE() << "3 ranks shared 2 micro-batches";
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
      EXPECT_THAT(error.what(), testing::HasSubstr("3 ranks, but a step has 2 micro-batches"));
    }
  });
  const auto alone = make_single_communicator();
  const auto exchange = make_host_exchange(*alone);
  EXPECT_THROW(TreeReducer(*alone, *exchange, 0), storage::Error);
}

TEST(TreeReduce, ALostPeerIsAnErrorOnEveryRankWithinTheDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> num_errors = 0;
  const auto body = [&](Communicator& communicator) {
    const auto exchange = make_host_exchange(communicator);
    TreeReducer reducer(communicator, *exchange, 5);
    for (int i = 0; i < reducer.num_own_leaves(); ++i) reducer.add(at::ones({3}));
    try {
      if (communicator.rank() == 1) {  // alive, but it does not come
        std::vector<std::byte> bytes(1);
        communicator.receive(bytes, 0, 7);
      }
      static_cast<void>(reducer.finish());
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUnavailable);
      ++num_errors;
    }
  };
  run_on_threads(3, body, std::chrono::milliseconds(50));
  EXPECT_EQ(num_errors, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(TreeReduce, OneRankSumsInTheMemoryOfItsFirstLeaf) {
  const auto alone = make_single_communicator();
  const auto exchange = make_host_exchange(*alone);
  TreeReducer reducer(*alone, *exchange, 4);
  const at::Tensor first = tensor_of(leaf(0));
  reducer.add(first);
  for (int i = 1; i < 4; ++i) reducer.add(tensor_of(leaf(i)));
  EXPECT_TRUE(reducer.finish().is_same(first)) << "a copy of the whole gradient was made";
}

TEST(TreeReduce, ALeafOfAnotherShapeOrDtypeAndOneTooManyAreBugs) {
  const auto alone = make_single_communicator();
  const auto exchange = make_host_exchange(*alone);
  TreeReducer reducer(*alone, *exchange, 2);
  EXPECT_THROW(reducer.add(at::ones({3}, at::kDouble)), storage::Error);
  reducer.add(at::ones({3}));
  EXPECT_THROW(reducer.add(at::ones({4})), storage::Error);
  EXPECT_THROW(reducer.finish(), storage::Error);
  reducer.add(at::ones({3}));
  EXPECT_THROW(reducer.add(at::ones({3})), storage::Error);
  EXPECT_TRUE(reducer.finish().equal(at::full({3}, 2.0F)));
}

}  // namespace
}  // namespace hedgerow::worker
