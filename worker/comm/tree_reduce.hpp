// The gradient of a step: a sum over the global micro-batches (leaves) in the order of one fixed
// binary tree over their index. A node of level l holds the 2^l leaves from a multiple of 2^l on;
// it is its left child plus its right one, or the left one alone where the leaves end before the
// right:
// ((0+1)+(2+3))+(4+5) for six. A rank owns a contiguous run of leaves. It sums the whole nodes
// among them as the leaves come; finish() joins nodes of different ranks at the rank of their first
// leaf, and sends the root to all. So any number of ranks gives the same bytes, on every rank; and
// any device, since an addition of two fp32 numbers has one result. Sums stay on the leaves'
// device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "worker/comm/tensor_exchange.hpp"

namespace hedgerow::worker {

class TreeReducer {
 public:
  // Ranks own equal shares of the leaves, or differ by one. Throws kUsage if a rank would own none.
  // The exchange is between the communicator's ranks; both outlive the reducer.
  TreeReducer(const Communicator& communicator, TensorExchange& exchange, int num_leaves);

  [[nodiscard]] int first_leaf() const { return first_leaf_; }
  [[nodiscard]] int num_own_leaves() const { return num_own_leaves_; }
  // Some ranks own one leaf more than others, which wait for them.
  [[nodiscard]] bool has_unequal_shares() const { return num_leaves_ % world_size_ != 0; }

  // The next own leaf, in order: fp32, contiguous, all of one shape and device. Its memory may be
  // summed into, and in the end be the result's. Returns before the device has summed.
  void add(const at::Tensor& leaf);
  // The sum over all leaves of all ranks, on every rank; collective. The reducer is then ready for
  // the next step. Throws as TensorExchange::exchange.
  at::Tensor finish();

 private:
  // The sum of leaves first to first + 2^level - 1, as far as there are any.
  struct Node {
    int first, level;
    at::Tensor sum;
  };

  [[nodiscard]] int owner(int leaf) const;
  // The sum of a node at the owner of its first leaf; undefined on other ranks. All ranks walk the
  // tree in one order, so that their messages meet.
  at::Tensor sum_of(int first, int level);
  // The root's sum goes from rank 0 to all.
  void share(const at::Tensor& sum);

  TensorExchange& exchange_;
  const int rank_, world_size_, num_leaves_;
  int first_leaf_ = 0;
  int num_own_leaves_ = 0;
  int num_added_ = 0;
  std::vector<Node> nodes_;    // of own leaves, in their order, none the sibling of the next
  std::size_t next_node_ = 0;  // the first one that sum_of() has not met
};

}  // namespace hedgerow::worker
