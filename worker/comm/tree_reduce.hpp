// The gradient of a step: a sum over the global micro-batches (leaves) in the order of one fixed
// perfect binary tree,
// ((0+1)+(2+3))+((4+5)+(6+7)). A rank owns a contiguous run of leaves = a subtree; it sums that as
// the leaves come, holds log2 partial sums at most, and finish() climbs the rest of the tree by
// pairwise exchange. So any number of ranks that divides the leaves gives the same bytes, on every
// rank.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/comm/communicator.hpp"

namespace hedgerow::worker {

class TreeReducer {
 public:
  // num_leaves and the world size are powers of two, the second divides the first. Throws kUsage
  // otherwise.
  TreeReducer(Communicator& communicator, int num_leaves);

  [[nodiscard]] int first_leaf() const { return first_leaf_; }
  [[nodiscard]] int num_own_leaves() const { return num_own_leaves_; }

  // The next own leaf, in order; all leaves have one length.
  void add(std::vector<float> leaf);
  // The sum over all leaves of all ranks, on every rank; collective. The reducer is then ready for
  // the next step.
  std::vector<float> finish();

 private:
  struct Partial {
    int level;  // sum of 2^level leaves
    std::vector<float> sum;
  };

  Communicator& communicator_;
  int first_leaf_ = 0;
  int num_own_leaves_ = 0;
  int num_added_ = 0;
  std::vector<Partial> partials_;
};

}  // namespace hedgerow::worker
