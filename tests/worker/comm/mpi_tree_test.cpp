// The tree of a step over the MPI communicator, run by every rank of an mpirun of 2, of 3 and of 4.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/comm/tree_reduce.hpp"

namespace hedgerow::worker {
namespace {

at::Tensor leaf(int index) {
  const at::Tensor numbers = at::arange(1000, at::kLong) * 7919 + index * 104729LL;
  return at::reciprocal((numbers.remainder(10007) + 1).to(at::kFloat));
}

TEST(MpiTree, GivesTheBytesOfOneProcess) {
  const auto alone = make_single_communicator();
  const auto nobody = make_tensor_exchange(*alone, at::kCPU, "auto");
  const auto communicator = make_mpi_communicator();
  ASSERT_GE(communicator->world_size(), 2) << "run me under mpirun";
  const auto exchange = make_tensor_exchange(*communicator, at::kCPU, "auto");
  EXPECT_EQ(exchange->name(), "MPI");
  for (const int num_leaves : {4, 6, 16}) {
    TreeReducer single(*alone, *nobody, num_leaves);
    for (int i = 0; i < num_leaves; ++i) single.add(leaf(i));
    TreeReducer reducer(*communicator, *exchange, num_leaves);
    for (int i = 0; i < reducer.num_own_leaves(); ++i) reducer.add(leaf(reducer.first_leaf() + i));
    EXPECT_TRUE(reducer.finish().equal(single.finish())) << num_leaves << " leaves";
  }
}

}  // namespace
}  // namespace hedgerow::worker
