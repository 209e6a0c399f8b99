// The teacher: a Llama-family decoder, loaded one layer at a time, run without autograd at one canonical shape.
// Residual stream [B, T, M]; B is always sequences_per_forward (the last batch is padded) because matrix products are not
// invariant to the number of rows, and equal shapes are what makes a block's input equal the full forward's bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "storage/model_config.hpp"

namespace hedgerow::worker {

// Weights of one decoder layer in the compute dtype; fused where the products share their input.
struct LayerWeights {
  at::Tensor input_norm;      // [M]
  at::Tensor qkv_proj;        // [(H + 2 G) D, M]: q, k, v rows one after the other
  at::Tensor qkv_bias;        // [(H + 2 G) D] or undefined
  at::Tensor q_norm, k_norm;  // [D] or undefined (Qwen3)
  at::Tensor o_proj;          // [M, H D]
  at::Tensor o_bias;          // [M] or undefined
  at::Tensor post_norm;       // [M]
  at::Tensor gate_up_proj;    // [2 I, M]: gate rows, then up rows
  at::Tensor gate_up_bias, down_bias;  // or undefined
  at::Tensor down_proj;       // [M, I]
};
LayerWeights load_layer(const storage::ModelDirectory& model, int layer_idx, at::ScalarType compute_dtype, const at::Device& device);

struct OuterWeights {
  at::Tensor embed_tokens;  // [V, M]
  at::Tensor final_norm;    // [M]
  at::Tensor lm_head;       // [V, M]; the embedding itself when tied
};
OuterWeights load_outer(const storage::ModelDirectory& model, at::ScalarType compute_dtype, const at::Device& device);

// cos and sin [T, D] fp32 of positions 0..T-1, from the configuration and never from a buffer in the weights.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable make_rope_table(const storage::ModelConfig& config, std::int64_t num_positions, const at::Device& device);

// q, k, v of one layer: q [B, H, T, D], k and v [B, G, T, D], after bias, q/k norm and RoPE, in the compute dtype.
struct Qkv {
  at::Tensor q, k, v;
};

at::Tensor embed(const at::Tensor& input_ids, const OuterWeights& outer);  // int64 [B, T] -> [B, T, M]
Qkv project_qkv(const at::Tensor& hidden_states, const LayerWeights& layer, const RopeTable& rope, const storage::ModelConfig& config);
// The rest of the layer from the attention output [B, H, T, D]: o_proj, residual, MLP, residual.
at::Tensor finish_layer(const at::Tensor& hidden_states, const at::Tensor& attention_output, const LayerWeights& layer,
                        const storage::ModelConfig& config);
// final norm and lm_head: [B, T, M] -> [B, T, V] in fp32.
at::Tensor logits(const at::Tensor& hidden_states, const OuterWeights& outer, const storage::ModelConfig& config);

}  // namespace hedgerow::worker
