#include "worker/finetune/layer_pass.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "kernels/softmax_attention.hpp"
#include "worker/finetune/backward_ops.hpp"

namespace hedgerow::worker {
namespace {

constexpr std::array<const char*, 3> kInputModules = {"q_proj", "k_proj", "v_proj"};

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// The LoRA matrices of the products that read x1, in q, k, v order, with the rows of qkv that each
// one updates.
struct InputUpdate {
  const LoraPair* pair;
  const char* module;
  std::int64_t first_row;
};

std::vector<InputUpdate> input_updates(const LoraAdapter& lora,
                                       int layer_idx,
                                       const storage::ModelConfig& config) {
  std::vector<InputUpdate> updates;
  std::int64_t row = 0;
  for (const char* module : kInputModules) {
    if (const LoraPair* pair = lora.find(layer_idx, module)) updates.push_back({pair, module, row});
    row += projection_shape(config, module).first;
  }
  return updates;
}

at::Tensor stacked_a(const std::vector<InputUpdate>& updates) {
  std::vector<at::Tensor> matrices;
  for (const auto& update : updates) matrices.push_back(update.pair->a);
  return at::cat(matrices);
}

}  // namespace

StudentLayer::StudentLayer(const StudentModel& model,
                           LayerWeights weights,
                           std::optional<kernels::HybridParameters> parameters,
                           std::int64_t rows)
    : model_(model),
      weights_(std::move(weights)),
      parameters_(std::move(parameters)),
      qkv_(weights_.qkv_proj, weights_.qkv_bias, rows),
      o_(weights_.o_proj, weights_.o_bias, rows),
      gate_up_(weights_.gate_up_proj, weights_.gate_up_bias, rows),
      down_(weights_.down_proj, weights_.down_bias, rows) {
  for (at::Tensor* matrix :
       {&weights_.qkv_proj, &weights_.o_proj, &weights_.gate_up_proj, &weights_.down_proj}) {
    *matrix = at::Tensor();
  }
}

HeadNorms StudentLayer::head_norms() const {
  return {weights_.q_norm, weights_.k_norm, model_.config.rms_norm_eps};
}

at::Tensor StudentLayer::project(const at::Tensor& normed,
                                 const LoraAdapter& lora,
                                 int layer_idx,
                                 LayerActivations* activations) const {
  at::Tensor qkv = qkv_.forward(normed);
  const auto updates = input_updates(lora, layer_idx, model_.config);
  if (updates.empty()) return qkv;
  RECORD_USER_SCOPE("hedgerow::lora");
  const at::Tensor wide = rows_of(normed).to(at::kFloat);
  const at::Tensor low_rank = at::linear(wide, stacked_a(updates));
  std::int64_t column = 0;
  for (const auto& update : updates) {
    const at::Tensor delta = at::linear(low_rank.narrow(1, column, lora.rank), update.pair->b);
    add_scaled(rows_of(qkv), update.first_row, delta, lora.scaling());
    column += lora.rank;
  }
  if (activations != nullptr) {
    activations->normed = wide;
    activations->low_rank = low_rank;
  }
  return qkv;
}

at::Tensor StudentLayer::attend(const Qkv& heads, LayerActivations* activations) const {
  const auto attention = [&](const Qkv& x) {
    return parameters_ ? kernels::hybrid_attention(x.q, x.k, x.v, *parameters_, model_.attention)
                       : kernels::softmax_attention_trainable(x.q, x.k, x.v);
  };
  if (activations == nullptr) return attention(heads);
  const at::AutoGradMode with_gradients(true);
  activations->heads = {heads.q.detach().requires_grad_(true),
                        heads.k.detach().requires_grad_(true),
                        heads.v.detach().requires_grad_(true)};
  activations->attended = attention(activations->heads);
  return activations->attended.detach();
}

at::Tensor StudentLayer::through_mlp_input(const at::Tensor& hidden_states,
                                           const LoraAdapter& lora,
                                           int layer_idx,
                                           LayerActivations& activations,
                                           bool keep) const {
  LayerActivations* kept = keep ? &activations : nullptr;
  const double eps = model_.config.rms_norm_eps;
  const at::Tensor qkv =
      project(rms_norm(hidden_states, weights_.input_norm, eps), lora, layer_idx, kept);
  const Qkv heads = split_heads(qkv,
                                model_.config.num_attention_heads,
                                model_.config.num_key_value_heads,
                                model_.rope.cos,
                                model_.rope.sin,
                                head_norms());
  if (keep && weights_.q_norm.defined()) activations.qkv = qkv;
  const at::Tensor y = attend(heads, kept).transpose(1, 2).flatten(2);
  at::Tensor update = o_.forward(y);
  if (const LoraPair* pair = lora.find(layer_idx, "o_proj")) {
    RECORD_USER_SCOPE("hedgerow::lora");
    const at::Tensor wide = rows_of(y).to(at::kFloat);
    const at::Tensor low_rank = at::linear(wide, pair->a);
    add_scaled(rows_of(update), 0, at::linear(low_rank, pair->b), lora.scaling());
    if (keep) {
      activations.merged = wide;
      activations.merged_low_rank = low_rank;
    }
  }
  const Normed mid = add_rms_norm(hidden_states, update, weights_.post_norm, eps);
  activations.mid = mid.hidden_states;
  activations.gate_up = gate_up_.forward(mid.normed);
  return mid.hidden_states;
}

at::Tensor StudentLayer::forward(const at::Tensor& hidden_states,
                                 const LoraAdapter& lora,
                                 int layer_idx,
                                 LayerActivations* activations) const {
  const at::NoGradGuard no_gradients;
  LayerActivations passing;
  LayerActivations& used = activations == nullptr ? passing : *activations;
  const at::Tensor mid =
      through_mlp_input(hidden_states, lora, layer_idx, used, activations != nullptr);
  return add_round(mid, down_.forward(swiglu(used.gate_up)), model_.stream);
}

LayerActivations StudentLayer::recompute(const at::Tensor& hidden_states,
                                         const LoraAdapter& lora,
                                         int layer_idx) const {
  const at::NoGradGuard no_gradients;
  LayerActivations activations;
  through_mlp_input(hidden_states, lora, layer_idx, activations, true);
  return activations;
}

Qkv StudentLayer::attention_gradient(const at::Tensor& mid_gradient,
                                     LayerActivations& activations,
                                     const LoraAdapter& lora,
                                     LoraAdapter& gradient,
                                     int layer_idx) const {
  const auto& config = model_.config;
  at::Tensor dy = o_.backward(mid_gradient);
  if (const LoraPair* pair = lora.find(layer_idx, "o_proj")) {
    RECORD_USER_SCOPE("hedgerow::lora");
    const at::Tensor dout = rows_of(mid_gradient).to(at::kFloat);
    const at::Tensor du = at::mm(dout, pair->b).mul_(lora.scaling());
    const LoraPair* out = gradient.find(layer_idx, "o_proj");
    at::Tensor da = out->a, db = out->b;
    at::mm_out(da, du.t(), activations.merged);
    at::mm_out(db, dout.t(), activations.merged_low_rank);
    db.mul_(lora.scaling());
    add_scaled(rows_of(dy), 0, at::mm(du, pair->a), 1.0);
  }
  const at::Tensor by_head =
      dy.unflatten(-1, {config.num_attention_heads, config.head_dim}).transpose(1, 2).contiguous();
  const at::AutoGradMode with_gradients(true);
  const auto gradients =
      torch::autograd::grad({activations.attended},
                            {activations.heads.q, activations.heads.k, activations.heads.v},
                            {by_head.to(activations.attended.scalar_type())});
  activations.attended = at::Tensor();
  return {gradients[0], gradients[1], gradients[2]};
}

at::Tensor StudentLayer::projection_gradient(const at::Tensor& dqkv,
                                             const LayerActivations& activations,
                                             const LoraAdapter& lora,
                                             LoraAdapter& gradient,
                                             int layer_idx,
                                             bool needs_input) const {
  RECORD_USER_SCOPE("hedgerow::lora");
  const auto updates = input_updates(lora, layer_idx, model_.config);
  std::vector<at::Tensor> columns;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const at::Tensor dout =
        rows_of(dqkv).narrow(1, updates[i].first_row, updates[i].pair->b.size(0)).to(at::kFloat);
    columns.push_back(at::mm(dout, updates[i].pair->b).mul_(lora.scaling()));
    const LoraPair* out = gradient.find(layer_idx, updates[i].module);
    at::Tensor da = out->a, db = out->b;
    at::mm_out(da, columns.back().t(), activations.normed);
    at::mm_out(db,
               dout.t(),
               activations.low_rank.narrow(1, static_cast<std::int64_t>(i) * lora.rank, lora.rank));
    db.mul_(lora.scaling());
  }
  if (!needs_input || columns.empty()) return {};
  return at::mm(at::cat(columns, 1), stacked_a(updates));
}

at::Tensor StudentLayer::backward(const at::Tensor& output_gradient,
                                  const at::Tensor& hidden_states,
                                  LayerActivations& activations,
                                  const LoraAdapter& lora,
                                  LoraAdapter& gradient,
                                  int layer_idx,
                                  bool needs_input) const {
  const at::NoGradGuard no_gradients;
  const double eps = model_.config.rms_norm_eps;
  const at::Tensor dgate_up = swiglu_backward(down_.backward(output_gradient), activations.gate_up);
  const at::Tensor dmid = rms_norm_backward(
      output_gradient, gate_up_.backward(dgate_up), {}, activations.mid, weights_.post_norm, eps);
  const Qkv dheads = attention_gradient(dmid, activations, lora, gradient, layer_idx);
  const at::Tensor dqkv =
      split_heads_backward(dheads, activations.qkv, model_.rope.cos, model_.rope.sin, head_norms());

  const at::Tensor low_rank =
      projection_gradient(dqkv, activations, lora, gradient, layer_idx, needs_input);
  if (!needs_input) return {};
  return rms_norm_backward(
      dmid, qkv_.backward(dqkv), low_rank, hidden_states, weights_.input_norm, eps);
}

}  // namespace hedgerow::worker
