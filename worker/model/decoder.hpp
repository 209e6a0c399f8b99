// The teacher: a Llama-family decoder layer, run without autograd. Residual stream [B, T, M] in the
// compute dtype. Callers that promise equal bytes (capture, transfer, evaluate) go through
// worker/model/block_runner.hpp, which fixes the shape of every product; the functions here take
// any shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "storage/model/model_config.hpp"
#include "worker/model/elementwise.hpp"
#include "worker/model/weights.hpp"

namespace hedgerow::worker {

// cos and sin [T, D] fp32 of positions 0..T-1, computed as transformers does (fp32) from the
// configuration and never from a buffer in the weights.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable make_rope_table(const storage::ModelConfig& config,
                          std::int64_t num_positions,
                          const at::Device& device);

at::Tensor embed(const at::Tensor& input_ids,
                 const at::Tensor& embed_tokens);  // int64 [B, T] -> [B, T, M]
// q [B, H, T, D], k and v [B, G, T, D] after bias, q/k norm and RoPE, in the compute dtype. rope
// row t belongs to token t.
Qkv project_qkv(const at::Tensor& hidden_states,
                const LayerWeights& layer,
                const RopeTable& rope,
                const storage::ModelConfig& config);
// The rest of the layer from the attention output [B, H, T, D]: o_proj, residual, norm, MLP,
// residual; the result is rounded to `stream`, the dtype in which the residual stream is stored
// between layers.
at::Tensor finish_layer(const at::Tensor& hidden_states,
                        const at::Tensor& attention_output,
                        const LayerWeights& layer,
                        const storage::ModelConfig& config,
                        at::ScalarType stream);
// A whole layer: `attend` gets q, k and v of project_qkv() and gives [B, H, T, D].
template <typename Attention>
at::Tensor decoder_layer(const at::Tensor& hidden_states,
                         const LayerWeights& layer,
                         const RopeTable& rope,
                         const storage::ModelConfig& config,
                         at::ScalarType stream,
                         const Attention& attend) {
  const at::Tensor y = attend(project_qkv(hidden_states, layer, rope, config));
  return finish_layer(hidden_states, y, layer, config, stream);
}
// Final norm and lm_head: [..., M] -> [..., V] in the compute dtype.
at::Tensor head(const at::Tensor& hidden_states,
                const OuterWeights& outer,
                const storage::ModelConfig& config);
// The same in fp32.
at::Tensor logits(const at::Tensor& hidden_states,
                  const OuterWeights& outer,
                  const storage::ModelConfig& config);

// x rounded to `stream` and back: what a shard would do to it.
at::Tensor round_to_stream(const at::Tensor& x, at::ScalarType stream);

// "bf16" or "fp32"; "auto" is bf16 where products in it are the fast path: on GPUs, and with AMX
// tiles on the CPU. (AVX512_BF16 alone multiplies bf16 at half the rate of fp32: 215 against 400
// GFLOP/s on two Sapphire Rapids cores.) Throws kUsage.
at::ScalarType resolve_compute_dtype(const std::string& word, const at::Device& device);
// "bf16" or "fp32".
const char* dtype_word(at::ScalarType compute_dtype);
at::ScalarType stream_dtype(const std::string& word);  // plan.shard_dtype: "bf16", "fp16", "fp32"

}  // namespace hedgerow::worker
