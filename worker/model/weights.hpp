// Weights of the teacher in memory, read one layer at a time from the model directory's
// safetensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "storage/model/weight_hashes.hpp"
#include "worker/model/layer/layer_weights.hpp"

namespace hedgerow::worker {

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
