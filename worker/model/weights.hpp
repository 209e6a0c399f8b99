// Weights of the teacher in memory, read one layer at a time from the model directory's
// safetensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "storage/model/weight_hashes.hpp"

namespace hedgerow::worker {

// Weights of one decoder layer, fused where products share their input. Matrices and biases in the
// compute dtype, norms in fp32 (they are read once a row, and a norm rounded to bf16 would differ
// from the stored one for nothing).
struct LayerWeights {
  at::Tensor input_norm;               // [M]
  at::Tensor qkv_proj;                 // [(H + 2 G) D, M]: q, k, v rows one after the other
  at::Tensor qkv_bias;                 // [(H + 2 G) D] or undefined
  at::Tensor q_norm, k_norm;           // [D] or undefined (Qwen3)
  at::Tensor o_proj;                   // [M, H D]
  at::Tensor o_bias;                   // [M] or undefined
  at::Tensor post_norm;                // [M]
  at::Tensor gate_up_proj;             // [2 I, M]: gate rows, then up rows
  at::Tensor gate_up_bias, down_bias;  // or undefined
  at::Tensor down_proj;                // [M, I]

  // The matrices once more in oneDNN's blocked layout (bf16 on the CPU), or undefined.
  at::Tensor qkv_packed, o_packed, gate_up_packed, down_packed;
};
// What a load calls on its way. Both may throw.
struct LoadHooks {
  // Before each tensor is read: one of a large model takes seconds.
  std::function<void()> check_cancelled = {};
  // With a layer (storage::kOuterWeights: what is outside them) and the hash of what was read.
  std::function<void(int, const storage::Hash128&)> check_hash = {};
};

// Throws kUsage naming tensor and file when a tensor is missing, has another shape than the
// configuration says, or a value that is not finite.
LayerWeights load_layer(const storage::ModelDirectory& model,
                        int layer_idx,
                        at::ScalarType compute_dtype,
                        const at::Device& device,
                        const LoadHooks& hooks = {});
// Packs the matrices for products of `rows` rows, which spares a repack in every product, and drops
// the plain ones; what is packed already stays. A no-op where packing does not apply (fp32, other
// devices). For forward passes without autograd only.
void pack_layer(LayerWeights& layer, std::int64_t rows);

struct OuterWeights {
  at::Tensor embed_tokens;  // [V, M] in the compute dtype
  at::Tensor final_norm;    // [M] fp32
  at::Tensor lm_head;       // [V, M]; the embedding itself when tied
};
// What the first and the last stage of a pipeline need; a stage between them needs neither.
struct OuterParts {
  bool embedding = true;
  bool head = true;  // final norm and lm_head
};
// The parts that are left out are read too, so that one that is not finite or another's is found
// before the work and not behind it; without any nothing is.
OuterWeights load_outer(const storage::ModelDirectory& model,
                        at::ScalarType compute_dtype,
                        const at::Device& device,
                        const LoadHooks& hooks = {},
                        const OuterParts& parts = {});
// The embedding alone: what capture of block 0 needs.
at::Tensor load_embedding(const storage::ModelDirectory& model,
                          at::ScalarType compute_dtype,
                          const at::Device& device,
                          const LoadHooks& hooks = {});

}  // namespace hedgerow::worker
