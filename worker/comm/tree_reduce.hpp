// The gradient of a step: a sum over the global micro-batches (leaves) in the order of one fixed
// perfect binary tree, ((0+1)+(2+3))+((4+5)+(6+7)). A rank owns a contiguous run of leaves = a
// subtree; it sums that as the leaves come, holds log2 partial sums at most, and finish() climbs
// the rest of the tree by pairwise exchange. So any number of ranks that divides the leaves gives
// the same bytes, on every rank; and any device, since an addition of two fp32 numbers has one
// result. Sums stay on the leaves' device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/comm/tensor_exchange.hpp"

namespace hedgerow::worker {

class TreeReducer {
 public:
  // num_leaves and the world size are powers of two, the second divides the first. Throws kUsage
  // otherwise. The exchange is between the communicator's ranks; both outlive the reducer.
  TreeReducer(const Communicator& communicator, TensorExchange& exchange, int num_leaves);

  [[nodiscard]] int first_leaf() const { return first_leaf_; }
  [[nodiscard]] int num_own_leaves() const { return num_own_leaves_; }

  // The next own leaf, in order: fp32, contiguous, all of one shape and device. Its memory may be
  // summed into, and in the end be the result's. Returns before the device has summed.
  void add(const at::Tensor& leaf);
  // The sum over all leaves of all ranks, on every rank; collective. The reducer is then ready for
  // the next step. Throws as TensorExchange::exchange.
  at::Tensor finish();

 private:
  struct Partial {
    int level;  // sum of 2^level leaves
    at::Tensor sum;
  };

  TensorExchange& exchange_;
  const int rank_, world_size_;
  int first_leaf_ = 0;
  int num_own_leaves_ = 0;
  int num_added_ = 0;
  std::vector<Partial> partials_;
};

}  // namespace hedgerow::worker
