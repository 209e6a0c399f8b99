// The recipe's attention (storage, no LibTorch) as the kernels take it.
#pragma once

#include "kernels/hybrid_attention.hpp"
#include "storage/recipe/attention_spec.hpp"

namespace hedgerow::worker {

[[nodiscard]] kernels::HybridOptions hybrid_options(const storage::AttentionSpec& spec);

}  // namespace hedgerow::worker
