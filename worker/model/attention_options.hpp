// The recipe's attention (storage, no LibTorch) as the kernels take it.
#pragma once

#include "kernels/hybrid_attention.hpp"
#include "storage/model/attention_spec.hpp"

namespace hedgerow::worker {

[[nodiscard]] kernels::HybridOptions hybrid_options(const storage::AttentionSpec& spec);

// Those of the losses, which do not know the cache of recalled keys.
[[nodiscard]] kernels::HybridOptions training_options(const kernels::HybridOptions& options);

}  // namespace hedgerow::worker
