#include "worker/comm/tree_reduce.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <bit>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

}  // namespace

TreeReducer::TreeReducer(const Communicator& communicator, TensorExchange& exchange, int num_leaves)
    : exchange_(exchange), rank_(communicator.rank()), world_size_(communicator.world_size()) {
  if (num_leaves < 1 || !std::has_single_bit(static_cast<unsigned>(num_leaves)) ||
      num_leaves % world_size_ != 0) {
    throw Error(ErrorKind::kUsage,
                "finetune: " + std::to_string(num_leaves) +
                    " micro-batches a step cannot be shared by " + std::to_string(world_size_) +
                    " ranks; the micro-batches must be a power of two that the ranks divide "
                    "(finetune.sequences_per_step, sequences_per_micro_batch, ranks)");
  }
  num_own_leaves_ = num_leaves / world_size_;
  first_leaf_ = rank_ * num_own_leaves_;
}

void TreeReducer::add(const at::Tensor& leaf) {
  if (num_added_ == num_own_leaves_) {
    throw Error(ErrorKind::kInternal,
                "tree reduction: leaf " + std::to_string(num_added_) + " of " +
                    std::to_string(num_own_leaves_) + " does not fit");
  }
  check_exchanged(leaf, partials_.empty() ? leaf : partials_.back().sum);
  const at::NoGradGuard no_gradients;
  ++num_added_;
  partials_.push_back({0, leaf});
  // The left operand has the lower leaves, on every rank.
  while (partials_.size() >= 2 && partials_[partials_.size() - 2].level == partials_.back().level) {
    auto& left = partials_[partials_.size() - 2];
    left.sum.add_(partials_.back().sum);
    ++left.level;
    partials_.pop_back();
  }
}

at::Tensor TreeReducer::finish() {
  if (num_added_ != num_own_leaves_) {
    throw Error(ErrorKind::kInternal,
                "tree reduction: " + std::to_string(num_added_) + " of " +
                    std::to_string(num_own_leaves_) + " leaves were added");
  }
  const at::NoGradGuard no_gradients;
  at::Tensor sum = std::move(partials_.back().sum);
  partials_.clear();
  num_added_ = 0;
  at::Tensor other = world_size_ > 1 ? at::empty_like(sum) : at::Tensor();
  for (int distance = 1; distance < world_size_; distance *= 2) {
    const int peer = rank_ ^ distance;
    exchange_.exchange(sum, other, peer);
    if (peer < rank_) std::swap(sum, other);
    sum.add_(other);
  }
  return sum;
}

}  // namespace hedgerow::worker
