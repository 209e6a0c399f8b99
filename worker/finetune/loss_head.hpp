// The end of a student: final norm, lm_head and the loss of the next token (cross-entropy, KL
// divergence from the teacher, or both) with its gradient, in chunks of rows, so that logits [T, V]
// are never whole. Only positions that count are computed at all.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "storage/shards/tokens_file.hpp"
#include "worker/finetune/token_loss.hpp"
#include "worker/model/layer/frozen_product.hpp"
#include "worker/model/weights.hpp"

namespace hedgerow::worker {

// Targets of a micro-batch: position t predicts token t + 1, and counts if loss_mask[t + 1] is set.
struct Targets {
  at::Tensor rows;                                  // int64 [n]: rows of [B T, M] that count
  at::Tensor token;                                 // int64 [n]: the token that each predicts
  std::optional<TopLogits> teacher = std::nullopt;  // [n, K] of those rows
  [[nodiscard]] std::int64_t count() const { return rows.numel(); }
};
[[nodiscard]] Targets targets_of(const storage::TokenSequences& tokens,
                                 std::span<const std::int64_t> sequences);
// `sequence(i)` gives the teacher's logits [T, K] of the i-th sequence of the micro-batch.
void add_teacher(Targets& targets,
                 std::int64_t num_sequences,
                 std::int64_t seq_len,
                 const std::function<TopLogits(std::int64_t)>& sequence);
// The number of positions that count, without making them.
[[nodiscard]] std::int64_t count_targets(const storage::TokenSequences& tokens,
                                         std::span<const std::int64_t> sequences);

class LossHead {
 public:
  LossHead(const storage::ModelConfig& config,
           const OuterWeights& outer,
           const LossWeights& weights = {});

  struct Result {
    double loss_sum = 0.0;  // of the weighted loss over the positions that count
    double ce_sum = 0.0;    // of -log p
    double kl_sum = 0.0;    // 0 without a teacher
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
  // The loss of the rows of targets from `begin` on.
  [[nodiscard]] TeacherLoss loss_of(const Targets& targets,
                                    std::int64_t begin,
                                    const at::Tensor& logits,
                                    const at::Tensor& token,
                                    double scale,
                                    bool with_gradient) const;

  LossWeights weights_;
  double rms_norm_eps_;
  at::Tensor final_norm_;
  FrozenProduct lm_head_;
};

}  // namespace hedgerow::worker
