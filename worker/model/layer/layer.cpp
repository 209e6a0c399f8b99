#include "worker/model/layer/layer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <vector>

#include "worker/model/layer/mlp.hpp"

namespace hedgerow::worker {
namespace {

using storage::NormPlace;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// A module with LoRA, and its place among the columns of its product.
struct LoraUpdate {
  const LoraPair* pair;
  storage::Slot slot;
  std::int64_t first_column;
};

// Those of a product's modules that have LoRA.
std::vector<LoraUpdate> updates_of(FrozenProduct LayerWeights::*product,
                                   const LayerLora& lora,
                                   const LayerContext& context) {
  std::vector<LoraUpdate> found;
  if (lora.pairs.empty()) return found;
  const auto* slots = std::ranges::find(kProducts, product, &ProductSlots::product);
  std::int64_t column = 0;
  for (const storage::Slot slot : slots->all()) {
    if (const auto pair = lora.pairs.find(slot); pair != lora.pairs.end())
      found.push_back({&pair->second, slot, column});
    column += storage::linear_module(context.config, slot).rows;
  }
  return found;
}

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

// A product of x with its modules' LoRA added to their columns.
at::Tensor adapted_product(FrozenProduct LayerWeights::*product,
                           const at::Tensor& x,
                           const LayerWeights& weights,
                           const LayerContext& context,
                           const LayerLora& lora,
                           LoraInput* kept) {
  at::Tensor y = (weights.*product).forward(x);
  const auto updates = updates_of(product, lora, context);
  if (updates.empty()) return y;
  RECORD_USER_SCOPE("hedgerow::lora");
  LoraInput input = lora_input(x, updates);
  std::int64_t column = 0;
  for (const auto& update : updates) {
    const at::Tensor delta =
        at::linear(input.low_rank.narrow(1, column, lora.rank), update.pair->b);
    add_scaled(rows_of(y), update.first_column, delta, lora.scaling);
    column += lora.rank;
  }
  if (kept != nullptr) *kept = std::move(input);
  return y;
}

// Writes the gradients of the modules' matrices from that of their product's output; returns LoRA's
// part of the gradient of its input [B T, in] fp32, undefined where it is not needed.
at::Tensor lora_gradient(const at::Tensor& output_gradient,
                         const LoraInput& input,
                         const std::vector<LoraUpdate>& updates,
                         const LayerLora& lora,
                         const LayerLora& gradient,
                         bool needs_input) {
  if (updates.empty()) return {};
  RECORD_USER_SCOPE("hedgerow::lora");
  std::vector<at::Tensor> columns;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const LoraPair& pair = *updates[i].pair;
    const at::Tensor dout =
        rows_of(output_gradient).narrow(1, updates[i].first_column, pair.b.size(0)).to(at::kFloat);
    columns.push_back(at::mm(dout, pair.b).mul_(lora.scaling));
    const LoraPair& out = gradient.pairs.at(updates[i].slot);
    at::Tensor da = out.a, db = out.b;
    at::mm_out(da, columns.back().t(), input.x);
    at::mm_out(db,
               dout.t(),
               input.low_rank.narrow(1, static_cast<std::int64_t>(i) * lora.rank, lora.rank));
    db.mul_(lora.scaling);
  }
  if (!needs_input) return {};
  return at::mm(columns.size() == 1 ? columns.front() : at::cat(columns, 1), stacked_a(updates));
}

HeadNorms head_norms(const LayerWeights& weights, const LayerContext& context) {
  return {weights.q_norm, weights.k_norm, context.config.rms_norm_eps};
}

RopeTable rope_of(const LayerWeights& weights, const LayerContext& context) {
  return weights.has_rope ? context.rope : identity_like(context.rope);
}

}  // namespace

Qkv layer_qkv(const at::Tensor& hidden_states,
              const LayerWeights& weights,
              const LayerContext& context,
              const LayerLora& lora,
              LayerTape* tape) {
  const at::NoGradGuard no_gradients;
  const storage::ModelConfig& config = context.config;
  const at::Tensor x = config.norm_place == NormPlace::kBefore
                           ? rms_norm(hidden_states, weights.attention_norm, config.rms_norm_eps)
                           : hidden_states;
  const at::Tensor qkv = adapted_product(
      &LayerWeights::qkv, x, weights, context, lora, tape == nullptr ? nullptr : &tape->qkv_lora);
  if (tape != nullptr && weights.q_norm.defined()) tape->qkv = qkv;
  return split_heads(qkv,
                     config.num_attention_heads,
                     config.num_key_value_heads,
                     rope_of(weights, context),
                     head_norms(weights, context));
}

at::Tensor layer_output(const at::Tensor& hidden_states,
                        const at::Tensor& attention_output,
                        const LayerWeights& weights,
                        const LayerContext& context,
                        const LayerLora& lora,
                        LayerTape* tape,
                        bool only_tape) {
  const at::NoGradGuard no_gradients;
  const double eps = context.config.rms_norm_eps;
  const bool is_before = context.config.norm_place == NormPlace::kBefore;
  LayerTape passing;
  LayerTape& kept = tape == nullptr ? passing : *tape;
  const at::Tensor y = attention_output.transpose(1, 2).flatten(2);
  const at::Tensor attended = adapted_product(
      &LayerWeights::o, y, weights, context, lora, tape == nullptr ? nullptr : &kept.o_lora);
  at::Tensor x;
  if (is_before) {
    const Normed mid = add_rms_norm(hidden_states, attended, weights.mlp_norm, eps);
    kept.mid = mid.hidden_states;
    x = mid.normed;
  } else {
    if (tape != nullptr) kept.attended = attended;
    kept.mid = hidden_states + rms_norm(attended, weights.attention_norm, eps);
    x = kept.mid;
  }
  kept.gate_up = adapted_product(&LayerWeights::gate_up,
                                 x,
                                 weights,
                                 context,
                                 lora,
                                 tape == nullptr ? nullptr : &kept.gate_up_lora);
  if (only_tape && is_before) return {};
  const at::Tensor down =
      adapted_product(&LayerWeights::down, swiglu(kept.gate_up), weights, context, lora, nullptr);
  if (is_before) return add_round(kept.mid, down, context.stream);
  if (tape != nullptr) kept.down = down;
  if (only_tape) return {};
  return add_round(kept.mid, rms_norm(down, weights.mlp_norm, eps), context.stream);
}

OutputGradients layer_output_backward(const at::Tensor& output_gradient,
                                      const LayerWeights& weights,
                                      const LayerContext& context,
                                      const LayerLora& lora,
                                      const LayerTape& tape,
                                      const LayerLora& gradient) {
  const at::NoGradGuard no_gradients;
  const double eps = context.config.rms_norm_eps;
  const bool is_before = context.config.norm_place == NormPlace::kBefore;
  // Through a norm at the output of attention or MLP alone, without the residual.
  const auto through_norm = [&](const at::Tensor& dy, const at::Tensor& x, const at::Tensor& norm) {
    return rms_norm_backward(at::zeros_like(x), dy, {}, x, norm, eps);
  };
  const at::Tensor ddown =
      is_before ? output_gradient : through_norm(output_gradient, tape.down, weights.mlp_norm);
  const at::Tensor dx = weights.down.backward(ddown);
  if (const auto updates = updates_of(&LayerWeights::down, lora, context); !updates.empty()) {
    const LoraInput input = lora_input(swiglu(tape.gate_up), updates);
    add_scaled(rows_of(dx), 0, lora_gradient(ddown, input, updates, lora, gradient, true), 1.0);
  }
  const at::Tensor dgate_up = swiglu_backward(dx, tape.gate_up);
  const at::Tensor low_rank = lora_gradient(dgate_up,
                                            tape.gate_up_lora,
                                            updates_of(&LayerWeights::gate_up, lora, context),
                                            lora,
                                            gradient,
                                            true);
  at::Tensor dinput = weights.gate_up.backward(dgate_up);
  at::Tensor dmid, dattended;
  if (is_before) {
    dmid = rms_norm_backward(output_gradient, dinput, low_rank, tape.mid, weights.mlp_norm, eps);
    dattended = dmid;
  } else {
    if (low_rank.defined()) add_scaled(rows_of(dinput), 0, low_rank, 1.0);
    dmid = output_gradient + dinput;
    dattended = through_norm(dmid, tape.attended, weights.attention_norm);
  }
  const at::Tensor dy = weights.o.backward(dattended);
  const at::Tensor o_low_rank = lora_gradient(
      dattended, tape.o_lora, updates_of(&LayerWeights::o, lora, context), lora, gradient, true);
  if (o_low_rank.defined()) add_scaled(rows_of(dy), 0, o_low_rank, 1.0);
  return {dmid, dy};
}

at::Tensor layer_qkv_backward(const Qkv& gradient_of_heads,
                              const at::Tensor& past_attention,
                              const at::Tensor& hidden_states,
                              const LayerWeights& weights,
                              const LayerContext& context,
                              const LayerLora& lora,
                              const LayerTape& tape,
                              const LayerLora& gradient,
                              bool needs_input) {
  const at::NoGradGuard no_gradients;
  const bool is_before = context.config.norm_place == NormPlace::kBefore;
  const at::Tensor dqkv = split_heads_backward(
      gradient_of_heads, tape.qkv, rope_of(weights, context), head_norms(weights, context));
  const bool needs_norm = needs_input || (is_before && is_trained(weights.attention_norm));
  const at::Tensor low_rank = lora_gradient(dqkv,
                                            tape.qkv_lora,
                                            updates_of(&LayerWeights::qkv, lora, context),
                                            lora,
                                            gradient,
                                            needs_norm);
  if (!needs_norm) return {};
  const at::Tensor dx = weights.qkv.backward(dqkv);
  if (is_before) {
    return rms_norm_backward(past_attention,
                             dx,
                             low_rank,
                             hidden_states,
                             weights.attention_norm,
                             context.config.rms_norm_eps);
  }
  if (low_rank.defined()) add_scaled(rows_of(dx), 0, low_rank, 1.0);
  return past_attention + dx;
}

}  // namespace hedgerow::worker
