#include "worker/model/decoder.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "coordinator/machine/processor.hpp"
#include "storage/base/error.hpp"
#include "worker/model/layer/norm.hpp"

namespace hedgerow::worker {
at::Tensor embed(const at::Tensor& input_ids, const at::Tensor& embed_tokens) {
  RECORD_USER_SCOPE("hedgerow::embed");
  return at::embedding(embed_tokens, input_ids);
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
    const bool fast =
        !device.is_cpu() || machine::multiplies_bfloat16_faster(machine::matrix_units());
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
