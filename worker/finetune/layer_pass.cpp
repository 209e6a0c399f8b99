#include "worker/finetune/layer_pass.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "kernels/softmax_attention.hpp"
#include "worker/finetune/backward_ops.hpp"
#include "worker/model/linear_branch.hpp"

namespace hedgerow::worker {
namespace {

constexpr std::initializer_list<const char*> kInputModules = {"q_proj", "k_proj", "v_proj"};
constexpr std::initializer_list<const char*> kMlpInputModules = {"gate_proj", "up_proj"};

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor stacked_a(const std::vector<LoraUpdate>& updates) {
  if (updates.size() == 1) return updates.front().pair->a;
  std::vector<at::Tensor> matrices;
  for (const auto& update : updates) matrices.push_back(update.pair->a);
  return at::cat(matrices);
}

LoraInput lora_input(const at::Tensor& x, const std::vector<LoraUpdate>& updates) {
  const at::Tensor wide = rows_of(x).to(at::kFloat);
  return {wide, at::linear(wide, stacked_a(updates))};
}

// The modules' LoRA of x added to their columns of y.
void add_lora(const at::Tensor& y,
              const at::Tensor& x,
              const std::vector<LoraUpdate>& updates,
              const LoraAdapter& lora,
              LoraInput* kept) {
  if (updates.empty()) return;
  RECORD_USER_SCOPE("hedgerow::lora");
  LoraInput input = lora_input(x, updates);
  std::int64_t column = 0;
  for (const auto& update : updates) {
    const at::Tensor delta =
        at::linear(input.low_rank.narrow(1, column, lora.rank), update.pair->b);
    add_scaled(rows_of(y), update.first_column, delta, lora.scaling());
    column += lora.rank;
  }
  if (kept != nullptr) *kept = std::move(input);
}

// Writes the gradients of the modules' matrices from that of their product's output; returns LoRA's
// part of the gradient of its input [B T, in] fp32, undefined where nobody needs it.
at::Tensor lora_gradient(const at::Tensor& output_gradient,
                         const LoraInput& input,
                         const std::vector<LoraUpdate>& updates,
                         const LoraAdapter& lora,
                         LoraAdapter& gradient,
                         int layer_idx,
                         bool needs_input) {
  if (updates.empty()) return {};
  RECORD_USER_SCOPE("hedgerow::lora");
  std::vector<at::Tensor> columns;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const LoraPair& pair = *updates[i].pair;
    const at::Tensor dout =
        rows_of(output_gradient).narrow(1, updates[i].first_column, pair.b.size(0)).to(at::kFloat);
    columns.push_back(at::mm(dout, pair.b).mul_(lora.scaling()));
    const LoraPair* out = gradient.find(layer_idx, updates[i].module);
    at::Tensor da = out->a, db = out->b;
    at::mm_out(da, columns.back().t(), input.x);
    at::mm_out(db,
               dout.t(),
               input.low_rank.narrow(1, static_cast<std::int64_t>(i) * lora.rank, lora.rank));
    db.mul_(lora.scaling());
  }
  if (!needs_input) return {};
  return at::mm(columns.size() == 1 ? columns.front() : at::cat(columns, 1), stacked_a(updates));
}

// In the order of their gradients.
std::array<at::Tensor*, 5> tensors_of(kernels::HybridParameters& parameters) {
  return {&parameters.q.layer,
          &parameters.q.bias,
          &parameters.k.layer,
          &parameters.k.bias,
          &parameters.window_factors};
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

std::vector<TrainedPart> StudentLayer::parts(int layer_idx) {
  std::vector<TrainedPart> parts;
  if (parameters_ && !is_linear_branch_off(*parameters_)) parts = parts_of(*parameters_, layer_idx);
  const auto norms = parts_of(weights_, layer_idx);
  parts.insert(parts.end(), norms.begin(), norms.end());
  return parts;
}

std::vector<LoraUpdate> StudentLayer::updates(const LoraAdapter& lora,
                                              int layer_idx,
                                              std::initializer_list<const char*> modules) const {
  std::vector<LoraUpdate> found;
  std::int64_t column = 0;
  for (const char* module : modules) {
    if (const LoraPair* pair = lora.find(layer_idx, module))
      found.push_back({pair, module, column});
    column += storage::linear_module(model_.config, module).rows;
  }
  return found;
}

at::Tensor StudentLayer::attend(const Qkv& heads, LayerActivations* activations) const {
  if (activations == nullptr) {
    return parameters_ ? kernels::hybrid_attention(
                             heads.q, heads.k, heads.v, *parameters_, model_.attention)
                       : kernels::softmax_attention_trainable(heads.q, heads.k, heads.v);
  }
  const at::AutoGradMode with_gradients(true);
  std::vector<at::Tensor>& leaves = activations->leaves;
  leaves = {heads.q.detach().requires_grad_(true),
            heads.k.detach().requires_grad_(true),
            heads.v.detach().requires_grad_(true)};
  if (!parameters_) {
    activations->attended = kernels::softmax_attention_trainable(leaves[0], leaves[1], leaves[2]);
    return activations->attended.detach();
  }
  kernels::HybridParameters parameters = *parameters_;
  for (at::Tensor* tensor : tensors_of(parameters)) {
    if (!is_trained(*tensor)) continue;
    *tensor = tensor->detach().requires_grad_(true);
    leaves.push_back(*tensor);
  }
  activations->attended =
      kernels::hybrid_attention(leaves[0], leaves[1], leaves[2], parameters, model_.attention);
  return activations->attended.detach();
}

at::Tensor StudentLayer::through_mlp_input(const at::Tensor& hidden_states,
                                           const LoraAdapter& lora,
                                           int layer_idx,
                                           LayerActivations& activations,
                                           bool keep) const {
  LayerActivations* kept = keep ? &activations : nullptr;
  const double eps = model_.config.rms_norm_eps;
  const at::Tensor normed = rms_norm(hidden_states, weights_.input_norm, eps);
  const at::Tensor qkv = qkv_.forward(normed);
  add_lora(qkv,
           normed,
           updates(lora, layer_idx, kInputModules),
           lora,
           keep ? &activations.qkv_lora : nullptr);
  const Qkv heads = split_heads(qkv,
                                model_.config.num_attention_heads,
                                model_.config.num_key_value_heads,
                                model_.rope.cos,
                                model_.rope.sin,
                                head_norms());
  if (keep && weights_.q_norm.defined()) activations.qkv = qkv;
  const at::Tensor y = attend(heads, kept).transpose(1, 2).flatten(2);
  const at::Tensor update = o_.forward(y);
  add_lora(
      update, y, updates(lora, layer_idx, {"o_proj"}), lora, keep ? &activations.o_lora : nullptr);
  const Normed mid = add_rms_norm(hidden_states, update, weights_.post_norm, eps);
  activations.mid = mid.hidden_states;
  activations.gate_up = gate_up_.forward(mid.normed);
  add_lora(activations.gate_up,
           mid.normed,
           updates(lora, layer_idx, kMlpInputModules),
           lora,
           keep ? &activations.gate_up_lora : nullptr);
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
  const at::Tensor x = swiglu(used.gate_up);
  const at::Tensor update = down_.forward(x);
  add_lora(update, x, updates(lora, layer_idx, {"down_proj"}), lora, nullptr);
  return add_round(mid, update, model_.stream);
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
  const at::Tensor dy = o_.backward(mid_gradient);
  const at::Tensor low_rank = lora_gradient(mid_gradient,
                                            activations.o_lora,
                                            updates(lora, layer_idx, {"o_proj"}),
                                            lora,
                                            gradient,
                                            layer_idx,
                                            true);
  if (low_rank.defined()) add_scaled(rows_of(dy), 0, low_rank, 1.0);
  const at::Tensor by_head =
      dy.unflatten(-1, {config.num_attention_heads, config.head_dim}).transpose(1, 2).contiguous();
  std::vector<at::Tensor> gradients;
  {
    const at::AutoGradMode with_gradients(true);
    gradients = torch::autograd::grad({activations.attended},
                                      activations.leaves,
                                      {by_head.to(activations.attended.scalar_type())});
  }
  activations.attended = at::Tensor();
  if (parameters_) {
    kernels::HybridParameters parameters = *parameters_;
    std::size_t next = 3;
    for (at::Tensor* tensor : tensors_of(parameters)) {
      if (is_trained(*tensor)) tensor->mutable_grad().add_(gradients[next++]);
    }
  }
  return {gradients[0], gradients[1], gradients[2]};
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
  const at::Tensor dx = down_.backward(output_gradient);
  if (const auto down = updates(lora, layer_idx, {"down_proj"}); !down.empty()) {
    const LoraInput input = lora_input(swiglu(activations.gate_up), down);
    add_scaled(rows_of(dx),
               0,
               lora_gradient(output_gradient, input, down, lora, gradient, layer_idx, true),
               1.0);
  }
  const at::Tensor dgate_up = swiglu_backward(dx, activations.gate_up);
  const at::Tensor mlp_low_rank = lora_gradient(dgate_up,
                                                activations.gate_up_lora,
                                                updates(lora, layer_idx, kMlpInputModules),
                                                lora,
                                                gradient,
                                                layer_idx,
                                                true);
  const at::Tensor dmid = rms_norm_backward(output_gradient,
                                            gate_up_.backward(dgate_up),
                                            mlp_low_rank,
                                            activations.mid,
                                            weights_.post_norm,
                                            eps);
  const Qkv dheads = attention_gradient(dmid, activations, lora, gradient, layer_idx);
  const at::Tensor dqkv =
      split_heads_backward(dheads, activations.qkv, model_.rope.cos, model_.rope.sin, head_norms());
  const bool needs_norm = needs_input || is_trained(weights_.input_norm);
  const at::Tensor low_rank = lora_gradient(dqkv,
                                            activations.qkv_lora,
                                            updates(lora, layer_idx, kInputModules),
                                            lora,
                                            gradient,
                                            layer_idx,
                                            needs_norm);
  if (!needs_norm) return {};
  return rms_norm_backward(
      dmid, qkv_.backward(dqkv), low_rank, hidden_states, weights_.input_norm, eps);
}

}  // namespace hedgerow::worker
