#include "worker/model/decoder.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <cmath>
#include <numbers>

#include "coordinator/machine/processor.hpp"
#include "storage/base/error.hpp"
#include "worker/model/packed_product.hpp"

namespace hedgerow::worker {
namespace {

// x [..., in] times weight^T, through the packed copy when there is one.
at::Tensor product(const at::Tensor& x,
                   const at::Tensor& weight,
                   const at::Tensor& packed,
                   const at::Tensor& bias) {
  RECORD_USER_SCOPE("hedgerow::frozen_product");
  return packed.defined() ? packed_linear(x, packed, bias) : at::linear(x, weight, bias);
}

at::Tensor inverse_frequencies(const storage::ModelConfig& config) {
  const storage::RopeConfig& rope = config.rope;
  const at::Tensor exponents =
      at::arange(0, config.head_dim, 2, at::kLong).to(at::kFloat) / config.head_dim;
  const at::Tensor plain = 1.0 / at::pow(at::Scalar(rope.theta), exponents);
  if (rope.kind == storage::RopeConfig::Kind::kLinear) return plain / rope.factor;
  if (rope.kind == storage::RopeConfig::Kind::kDefault) return plain;
  // Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between
  // interpolated.
  const double context = rope.original_max_position_embeddings;
  const at::Tensor wavelength = 2.0 * std::numbers::pi / plain;
  const at::Tensor smooth = (context / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between = (1.0 - smooth) * plain / rope.factor + smooth * plain;
  const at::Tensor stretched =
      at::where(wavelength > context / rope.low_freq_factor, plain / rope.factor, between);
  return at::where(wavelength < context / rope.high_freq_factor, plain, stretched);
}

}  // namespace

RopeTable make_rope_table(const storage::ModelConfig& config,
                          std::int64_t num_positions,
                          const at::Device& device) {
  const at::Tensor positions = at::arange(num_positions, at::kLong).to(at::kFloat);
  const at::Tensor angles = positions.unsqueeze(1) * inverse_frequencies(config).unsqueeze(0);
  const at::Tensor both = at::cat({angles, angles}, -1);
  return {both.cos().to(device), both.sin().to(device)};
}

at::Tensor embed(const at::Tensor& input_ids, const at::Tensor& embed_tokens) {
  RECORD_USER_SCOPE("hedgerow::embed");
  return at::embedding(embed_tokens, input_ids);
}

Qkv project_qkv(const at::Tensor& hidden_states,
                const LayerWeights& layer,
                const RopeTable& rope,
                const storage::ModelConfig& config) {
  const std::int64_t heads = config.num_attention_heads;
  const std::int64_t kv_heads = config.num_key_value_heads;
  const at::Tensor normed = rms_norm(hidden_states, layer.input_norm, config.rms_norm_eps);
  const at::Tensor qkv = product(normed, layer.qkv_proj, layer.qkv_packed, layer.qkv_bias);
  return split_heads(
      qkv, heads, kv_heads, rope.cos, rope.sin, {layer.q_norm, layer.k_norm, config.rms_norm_eps});
}

at::Tensor finish_layer(const at::Tensor& hidden_states,
                        const at::Tensor& attention_output,
                        const LayerWeights& layer,
                        const storage::ModelConfig& config,
                        at::ScalarType stream) {
  const at::Tensor heads = attention_output.transpose(1, 2).flatten(2);
  const at::Tensor attended = product(heads, layer.o_proj, layer.o_packed, layer.o_bias);
  const Normed mid = add_rms_norm(hidden_states, attended, layer.post_norm, config.rms_norm_eps);
  const at::Tensor gate_up =
      product(mid.normed, layer.gate_up_proj, layer.gate_up_packed, layer.gate_up_bias);
  const at::Tensor activated = swiglu(gate_up);
  const at::Tensor down = product(activated, layer.down_proj, layer.down_packed, layer.down_bias);
  return add_round(mid.hidden_states, down, stream);
}

at::Tensor head(const at::Tensor& hidden_states,
                const OuterWeights& outer,
                const storage::ModelConfig& config) {
  return at::linear(rms_norm(hidden_states, outer.final_norm, config.rms_norm_eps), outer.lm_head);
}

at::Tensor logits(const at::Tensor& hidden_states,
                  const OuterWeights& outer,
                  const storage::ModelConfig& config) {
  return head(hidden_states, outer, config).to(at::kFloat);
}

at::Tensor round_to_stream(const at::Tensor& x, at::ScalarType stream) {
  if (stream == at::kFloat || stream == x.scalar_type()) return x;
  return x.to(stream).to(x.scalar_type());
}

at::ScalarType resolve_compute_dtype(const std::string& word, const at::Device& device) {
  if (word == "bf16") return at::kBFloat16;
  if (word == "fp32") return at::kFloat;
  if (word == "auto") {
    const bool fast = !device.is_cpu() || wire::multiplies_bfloat16_faster(wire::matrix_units());
    return fast ? at::kBFloat16 : at::kFloat;
  }
  throw storage::Error(storage::ErrorKind::kUsage,
                       "plan.compute_dtype: expected auto, bf16 or fp32, found '" + word + "'");
}

const char* dtype_word(at::ScalarType compute_dtype) {
  return compute_dtype == at::kBFloat16 ? "bf16" : "fp32";
}

at::ScalarType stream_dtype(const std::string& word) {
  if (word == "bf16") return at::kBFloat16;
  if (word == "fp16") return at::kHalf;
  if (word == "fp32") return at::kFloat;
  throw storage::Error(storage::ErrorKind::kUsage,
                       "plan.shard_dtype: expected bf16, fp16 or fp32, found '" + word + "'");
}

}  // namespace hedgerow::worker
