// Runs consecutive decoder layers over whole sequences without autograd. One runner, two consumers:
// capture keeps what comes out, transfer and evaluate look at q, k and v on the way.
//
// The canonical forward is one sequence: every product has seq_len rows, whatever batch the
// sequence came in. Products are not invariant to the number of rows nor, at a tile's edge, to a
// row's place among them, so this (and not only an equal batch shape) is what makes a layer's input
// the same bits for every k, for a shuffled order, for the validation tail and for the full
// teacher. It also keeps one sequence's activations in the cache. worker/README.md has the figures.
#pragma once

#include <functional>
#include <vector>

#include "storage/model/model_config.hpp"
#include "worker/model/decoder.hpp"
#include "worker/model/layer/layer.hpp"

namespace hedgerow::worker {

// What layer `layer_idx` (global) attends with: q, k, v of one sequence or of the whole batch ->
// [B, H, T, D] in q's dtype.
using Attend = std::function<at::Tensor(int layer_idx, const Qkv& qkv)>;

struct RunOptions {
  int num_layers = -1;  // how many of the block's layers to run; -1: all
  bool finish_last =
      true;  // false: the last of them ends with its attention (a transfer needs no more)
  bool attend_batched =
      false;  // attend gets all sequences at once (transfer) instead of one after the other
  // Called before each sequence's products in each layer; what it throws ends the run.
  std::function<void()> check_cancelled = {};
};

class BlockRunner {
 public:
  // `layers` are first_layer, first_layer + 1, ... ; `stream` is the dtype to which the residual
  // stream is rounded.
  BlockRunner(const storage::ModelConfig& config,
              int first_layer,
              std::vector<LayerWeights> layers,
              at::ScalarType stream);

  [[nodiscard]] int first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] int num_layers() const noexcept { return static_cast<int>(layers_.size()); }

  // hidden_states [B, T, M], rounded to the stream dtype, in the compute dtype -> the same after
  // the layers. Undefined if finish_last is false. rope has at least T rows.
  at::Tensor run(const at::Tensor& hidden_states,
                 const RopeTable& rope,
                 const Attend& attend,
                 const RunOptions& options = {}) const;

 private:
  storage::ModelConfig config_;
  int first_layer_;
  std::vector<LayerWeights> layers_;
  at::ScalarType stream_;
};

// The teacher's attention of a batch, one sequence at a time.
at::Tensor teacher_attention(const Qkv& qkv);

// The sequences of a batch, as views [1, ...].
std::vector<at::Tensor> split_batch(const at::Tensor& batch);

}  // namespace hedgerow::worker
