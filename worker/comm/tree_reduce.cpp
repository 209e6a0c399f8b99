#include "worker/comm/tree_reduce.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <bit>
#include <cstdint>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

}  // namespace

TreeReducer::TreeReducer(const Communicator& communicator, TensorExchange& exchange, int num_leaves)
    : exchange_(exchange),
      rank_(communicator.rank()),
      world_size_(communicator.world_size()),
      num_leaves_(num_leaves) {
  if (num_leaves < world_size_) {
    throw Error(ErrorKind::kUsage,
                "finetune: " + std::to_string(world_size_) + " ranks, but a step has " +
                    std::to_string(num_leaves) +
                    " micro-batches and each rank needs one: use no more ranks than "
                    "finetune.sequences_per_step / finetune.sequences_per_micro_batch");
  }
  const auto begin_of = [&](int rank) {
    return static_cast<int>(std::int64_t{rank} * num_leaves_ / world_size_);
  };
  first_leaf_ = begin_of(rank_);
  num_own_leaves_ = begin_of(rank_ + 1) - first_leaf_;
}

// The inverse of begin_of: the last rank that begins at or before the leaf.
int TreeReducer::owner(int leaf) const {
  return static_cast<int>(((std::int64_t{leaf} + 1) * world_size_ - 1) / num_leaves_);
}

void TreeReducer::add(const at::Tensor& leaf) {
  if (num_added_ == num_own_leaves_) {
    throw Error(ErrorKind::kInternal,
                "tree reduction: leaf " + std::to_string(num_added_) + " of " +
                    std::to_string(num_own_leaves_) + " does not fit");
  }
  check_exchanged(leaf, nodes_.empty() ? leaf : nodes_.back().sum);
  const at::NoGradGuard no_gradients;
  nodes_.push_back({first_leaf_ + num_added_, 0, leaf});
  ++num_added_;
  // The left operand has the lower leaves, on every rank.
  while (nodes_.size() >= 2) {
    Node& left = nodes_[nodes_.size() - 2];
    const bool is_left_child = (left.first >> left.level) % 2 == 0;
    if (left.level != nodes_.back().level || !is_left_child) break;
    left.sum.add_(nodes_.back().sum);
    ++left.level;
    nodes_.pop_back();
  }
}

at::Tensor TreeReducer::sum_of(int first, int level) {
  if (next_node_ < nodes_.size() && nodes_[next_node_].first == first &&
      nodes_[next_node_].level == level) {
    return nodes_[next_node_++].sum;
  }
  if (level == 0) return {};
  const int middle = first + (1 << (level - 1));
  at::Tensor left = sum_of(first, level - 1);
  if (middle >= num_leaves_) return left;
  const at::Tensor right = sum_of(middle, level - 1);
  const int left_owner = owner(first);
  const int right_owner = owner(middle);
  if (rank_ == left_owner) {
    at::Tensor other = right;
    if (rank_ != right_owner) {
      other = at::empty_like(left);
      exchange_.exchange({}, other, right_owner);
    }
    left.add_(other);
  } else if (rank_ == right_owner) {
    exchange_.exchange(right, {}, left_owner);
  }
  return left;
}

void TreeReducer::share(const at::Tensor& sum) {
  const auto ranks = static_cast<unsigned>(world_size_);
  for (int distance = static_cast<int>(std::bit_ceil(ranks) / 2); distance > 0; distance /= 2) {
    const int place = rank_ % (2 * distance);
    if (place == 0 && rank_ + distance < world_size_)
      exchange_.exchange(sum, {}, rank_ + distance);
    else if (place == distance)
      exchange_.exchange({}, sum, rank_ - distance);
  }
}

at::Tensor TreeReducer::finish() {
  if (num_added_ != num_own_leaves_) {
    throw Error(ErrorKind::kInternal,
                "tree reduction: " + std::to_string(num_added_) + " of " +
                    std::to_string(num_own_leaves_) + " leaves were added");
  }
  const at::NoGradGuard no_gradients;
  const int height = static_cast<int>(std::bit_width(static_cast<unsigned>(num_leaves_ - 1)));
  at::Tensor sum = sum_of(0, height);
  // Ranks without the root have sent all of theirs: the memory of one takes the result.
  if (!sum.defined()) sum = nodes_.front().sum;
  nodes_.clear();
  next_node_ = 0;
  num_added_ = 0;
  share(sum);
  return sum;
}

}  // namespace hedgerow::worker
