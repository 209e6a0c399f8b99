#include "worker/finetune/loss_head.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "storage/shape/budgets.hpp"
#include "worker/model/layer/norm.hpp"

namespace hedgerow::worker {
Targets targets_of(const storage::TokenSequences& tokens, std::span<const std::int64_t> sequences) {
  std::vector<std::int64_t> rows, next;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto ids = tokens.sequence(sequences[i]);
    const auto mask = tokens.mask(sequences[i]);
    for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
      if (mask[t + 1] == 0) continue;
      rows.push_back(static_cast<std::int64_t>(i * ids.size() + t));
      next.push_back(ids[t + 1]);
    }
  }
  return {at::tensor(rows, at::kLong), at::tensor(next, at::kLong)};
}

void add_teacher(Targets& targets,
                 std::int64_t num_sequences,
                 std::int64_t seq_len,
                 const std::function<TopLogits(std::int64_t)>& sequence) {
  const auto* row = targets.rows.const_data_ptr<std::int64_t>();
  const auto* end = row + targets.count();
  std::vector<at::Tensor> ids, values, rest;
  for (std::int64_t i = 0; i < num_sequences; ++i) {
    std::vector<std::int64_t> positions;
    for (; row != end && *row < (i + 1) * seq_len; ++row) positions.push_back(*row - i * seq_len);
    if (positions.empty()) continue;
    const TopLogits whole = sequence(i);
    const at::Tensor index = at::tensor(positions, at::kLong);
    ids.push_back(whole.ids.index_select(0, index));
    values.push_back(whole.log_probabilities.index_select(0, index));
    rest.push_back(whole.log_rest.index_select(0, index));
  }
  if (!ids.empty()) targets.teacher = TopLogits{at::cat(ids), at::cat(values), at::cat(rest)};
}

std::int64_t count_targets(const storage::TokenSequences& tokens,
                           std::span<const std::int64_t> sequences) {
  std::int64_t count = 0;
  for (const auto sequence : sequences) {
    const auto mask = tokens.mask(sequence);
    count += std::count_if(
        mask.begin() + 1, mask.end(), [](std::uint8_t counts) { return counts != 0; });
  }
  return count;
}

LossHead::LossHead(const storage::ModelConfig& config,
                   const OuterWeights& outer,
                   const LossWeights& weights)
    : weights_(weights),
      rms_norm_eps_(config.rms_norm_eps),
      final_norm_(outer.final_norm),
      lm_head_(outer.lm_head) {
  lm_head_.pack_with_transpose(storage::kLossRows);
}

TeacherLoss LossHead::loss_of(const Targets& targets,
                              std::int64_t begin,
                              const at::Tensor& logits,
                              const at::Tensor& token,
                              double scale,
                              bool with_gradient) const {
  if (!targets.teacher) {
    const CrossEntropy entropy = cross_entropy(logits, token, scale, with_gradient);
    return {entropy.loss_sum, 0.0, entropy.gradient};
  }
  const auto rows = [&](const at::Tensor& of_all) {
    return of_all.narrow(0, begin, token.numel()).to(logits.device());
  };
  const TopLogits teacher{rows(targets.teacher->ids),
                          rows(targets.teacher->log_probabilities),
                          rows(targets.teacher->log_rest)};
  return teacher_loss(logits, token, teacher, weights_, scale, with_gradient);
}

LossHead::Result LossHead::run(const at::Tensor& hidden_states,
                               const Targets& targets,
                               double scale,
                               bool with_gradient,
                               const std::function<void()>& check_cancelled) const {
  const at::NoGradGuard no_gradients;
  Result result;
  const at::Tensor rows = hidden_states.reshape({-1, hidden_states.size(-1)});
  at::Tensor gradient = with_gradient ? at::zeros_like(rows) : at::Tensor();
  const std::int64_t most = rows.is_cpu() ? storage::kLossRows : storage::kLossRowsOnGpu;
  for (std::int64_t begin = 0; begin < targets.count(); begin += most) {
    check_cancelled();
    const std::int64_t count = std::min(most, targets.count() - begin);
    const at::Tensor index = targets.rows.narrow(0, begin, count).to(rows.device());
    const at::Tensor token = targets.token.narrow(0, begin, count).to(rows.device());
    const at::Tensor x = rows.index_select(0, index);
    const at::Tensor logits = lm_head_.forward(rms_norm(x, final_norm_, rms_norm_eps_));
    const TeacherLoss loss = loss_of(targets, begin, logits, token, scale, with_gradient);
    result.ce_sum += loss.ce_sum;
    result.kl_sum += loss.kl_sum;
    if (!with_gradient) continue;
    const at::Tensor dnormed = lm_head_.backward(loss.gradient);
    gradient.index_copy_(
        0, index, rms_norm_backward(at::zeros_like(x), dnormed, {}, x, final_norm_, rms_norm_eps_));
  }
  result.loss_sum = weights_.ce * result.ce_sum + weights_.kl * result.kl_sum;
  if (with_gradient) result.gradient = gradient.view(hidden_states.sizes());
  return result;
}

}  // namespace hedgerow::worker
