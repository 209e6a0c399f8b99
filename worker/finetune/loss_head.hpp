// The end of a student: final norm, lm_head and next-token cross-entropy with its gradient, in
// chunks of rows, so that logits [T, V] are never whole. Only positions that count are computed at
// all.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "storage/shards/tokens_file.hpp"
#include "worker/finetune/frozen_product.hpp"
#include "worker/model/decoder.hpp"

namespace hedgerow::worker {

// Targets of a micro-batch: position t predicts token t + 1, and counts if loss_mask[t + 1] is set.
struct Targets {
  at::Tensor rows;   // int64 [n]: rows of [B T, M] that count
  at::Tensor token;  // int64 [n]: the token that each predicts
  [[nodiscard]] std::int64_t count() const { return rows.numel(); }
};
[[nodiscard]] Targets targets_of(const storage::TokenSequences& tokens,
                                 std::span<const std::int64_t> sequences);
// The number of positions that count, without making them.
[[nodiscard]] std::int64_t count_targets(const storage::TokenSequences& tokens,
                                         std::span<const std::int64_t> sequences);

class LossHead {
 public:
  LossHead(const storage::ModelConfig& config, const OuterWeights& outer);

  struct Result {
    double loss_sum = 0.0;  // of -log p over the positions that count
    at::Tensor gradient;    // of scale * loss_sum in hidden_states; undefined unless asked for
  };
  // hidden_states [B, T, M]: the last layer's output. `check_cancelled` is called before each chunk
  // of rows, and may throw.
  [[nodiscard]] Result run(
      const at::Tensor& hidden_states,
      const Targets& targets,
      double scale,
      bool with_gradient,
      const std::function<void()>& check_cancelled = [] {}) const;

 private:
  double rms_norm_eps_;
  at::Tensor final_norm_;
  FrozenProduct lm_head_;
};

}  // namespace hedgerow::worker
