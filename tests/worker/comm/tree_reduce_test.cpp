#include "worker/comm/tree_reduce.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "storage/base/error.hpp"

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

// With plain numbers, one after the other: what a sum of tensors must be on every device.
std::vector<float> tree_sum(int first, int count) {
  if (count == 1) return leaf(first);
  auto left = tree_sum(first, count / 2);
  const auto right = tree_sum(first + count / 2, count / 2);
  for (std::size_t i = 0; i < kLength; ++i) left[i] += right[i];
  return left;
}

TEST(TreeReduce, OneTwoFourAndEightRanksGiveTheBytesOfTheTreeOnEveryRank) {
  for (const int num_leaves : {8, 16}) {
    const auto expected = bits(tree_sum(0, num_leaves));
    for (const int world_size : {1, 2, 4, 8}) {
      run_on_threads(world_size, [&](Communicator& communicator) {
        const auto exchange = make_host_exchange(communicator);
        TreeReducer reducer(communicator, *exchange, num_leaves);
        for (int step = 0; step < 2; ++step) {
          for (int i = 0; i < reducer.num_own_leaves(); ++i)
            reducer.add(tensor_of(leaf(reducer.first_leaf() + i)));
          EXPECT_EQ(bits(reducer.finish()), expected)
              << num_leaves << " leaves, " << world_size << " ranks, rank " << communicator.rank()
              << ", step " << step;
        }
      });
    }
  }
}

TEST(TreeReduce, TheTestCanFailARunningSumHasOtherBytes) {
  std::vector<float> running = leaf(0);
  for (int i = 1; i < 8; ++i) {
    const auto next = leaf(i);
    for (std::size_t j = 0; j < kLength; ++j) running[j] += next[j];
  }
  EXPECT_NE(bits(running), bits(tree_sum(0, 8)));
}

TEST(TreeReduce, AWorldThatCannotShareTheMicroBatchesIsRefusedBeforeAnyWork) {
  run_on_threads(3, [](Communicator& communicator) {
    const auto exchange = make_host_exchange(communicator);
    EXPECT_THROW(TreeReducer(communicator, *exchange, 8), storage::Error);
  });
  const auto alone = make_single_communicator();
  const auto exchange = make_host_exchange(*alone);
  EXPECT_THROW(TreeReducer(*alone, *exchange, 6), storage::Error);
  EXPECT_THROW(TreeReducer(*alone, *exchange, 0), storage::Error);
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
