// What stands around the decoder layers: embedding, final norm and lm_head, and the dtypes of a
// computation. Residual stream [B, T, M] in the compute dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "storage/model/model_config.hpp"
#include "worker/model/weights.hpp"

namespace hedgerow::worker {

at::Tensor embed(const at::Tensor& input_ids,
                 const at::Tensor& embed_tokens);  // int64 [B, T] -> [B, T, M]
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

// "bf16" or "fp32"; "auto" is bf16 where products in it are the fast path: on GPUs, and on CPUs
// that multiplies_bfloat16_faster() names (coordinator/machine/processor.hpp). Throws kUsage.
at::ScalarType resolve_compute_dtype(const std::string& word, const at::Device& device);
// "bf16" or "fp32".
const char* dtype_word(at::ScalarType compute_dtype);
at::ScalarType stream_dtype(const std::string& word);  // plan.shard_dtype: "bf16", "fp16", "fp32"

}  // namespace hedgerow::worker
