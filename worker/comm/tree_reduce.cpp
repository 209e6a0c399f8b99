#include "worker/comm/tree_reduce.hpp"

#include <bit>

#include "storage/error.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr int kTreeTag = 100;

// left += right. The left operand has the lower leaves, on every rank.
void add_into(std::vector<float>& left, const std::vector<float>& right) {
  for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
}

}  // namespace

TreeReducer::TreeReducer(Communicator& communicator, int num_leaves) : communicator_(communicator) {
  const int ranks = communicator.world_size();
  if (num_leaves < 1 || !std::has_single_bit(static_cast<unsigned>(num_leaves)) ||
      num_leaves % ranks != 0) {
    throw Error(ErrorKind::kUsage,
                "finetune: " + std::to_string(num_leaves) +
                    " micro-batches a step cannot be shared by " + std::to_string(ranks) +
                    " ranks; the micro-batches must be a power of two that the ranks divide "
                    "(finetune.sequences_per_step, sequences_per_micro_batch, ranks)");
  }
  num_own_leaves_ = num_leaves / ranks;
  first_leaf_ = communicator.rank() * num_own_leaves_;
}

void TreeReducer::add(std::vector<float> leaf) {
  if (num_added_ == num_own_leaves_ ||
      (!partials_.empty() && partials_.back().sum.size() != leaf.size())) {
    throw Error(ErrorKind::kInternal,
                "tree reduction: leaf " + std::to_string(num_added_) + " of " +
                    std::to_string(num_own_leaves_) + " does not fit");
  }
  ++num_added_;
  partials_.push_back({0, std::move(leaf)});
  while (partials_.size() >= 2 && partials_[partials_.size() - 2].level == partials_.back().level) {
    auto& left = partials_[partials_.size() - 2];
    add_into(left.sum, partials_.back().sum);
    ++left.level;
    partials_.pop_back();
  }
}

std::vector<float> TreeReducer::finish() {
  if (num_added_ != num_own_leaves_) {
    throw Error(ErrorKind::kInternal,
                "tree reduction: " + std::to_string(num_added_) + " of " +
                    std::to_string(num_own_leaves_) + " leaves were added");
  }
  std::vector<float> sum = std::move(partials_.back().sum);
  partials_.clear();
  num_added_ = 0;
  std::vector<float> other(sum.size());
  const int rank = communicator_.rank();
  for (int distance = 1; distance < communicator_.world_size(); distance *= 2) {
    const int peer = rank ^ distance;
    if (rank < peer) {
      communicator_.send(std::as_bytes(std::span(sum)), peer, kTreeTag);
      communicator_.receive(std::as_writable_bytes(std::span(other)), peer, kTreeTag);
      add_into(sum, other);
    } else {
      communicator_.receive(std::as_writable_bytes(std::span(other)), peer, kTreeTag);
      communicator_.send(std::as_bytes(std::span(sum)), peer, kTreeTag);
      add_into(other, sum);
      std::swap(sum, other);
    }
  }
  return sum;
}

}  // namespace hedgerow::worker
