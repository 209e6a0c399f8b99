// The recipe's attention (storage, no LibTorch) as the kernels take it.
#pragma once

#include "kernels/hybrid_attention.hpp"
#include "storage/attention_spec.hpp"

namespace hedgerow::worker {

[[nodiscard]] kernels::HybridOptions hybrid_options(const storage::AttentionSpec& spec);
[[nodiscard]] kernels::FeatureMapStart feature_map_start(storage::FeatureMapStart start);

// The start of one map, [num_heads, head_dim, f] fp32 on the CPU; undefined if the spec's map has
// no projection. Its random numbers are Philox streams keyed by (seed, layer_idx, tensor_id, head):
// equal for any split into blocks and any order of layers. Pass the same tensor_id for q and k:
// phi_k begins as a copy of phi_q.
[[nodiscard]] at::Tensor start_feature_map(const storage::AttentionSpec& spec,
                                           std::int64_t num_heads,
                                           std::int64_t head_dim,
                                           std::uint64_t seed,
                                           std::uint32_t layer_idx,
                                           std::uint32_t tensor_id);

}  // namespace hedgerow::worker
