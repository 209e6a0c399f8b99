// Weights of one decoder layer in memory, by slot (storage/model/architecture.hpp), fused where
// products share their input. Matrices and biases in the compute dtype, norms in fp32 (they are
// read once a row, and a norm rounded to bf16 would differ from the stored one for nothing).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <span>

#include "storage/model/architecture.hpp"
#include "worker/model/layer/frozen_product.hpp"

namespace hedgerow::worker {

struct LayerWeights {
  at::Tensor attention_norm, mlp_norm;  // [M], where NormPlace says
  at::Tensor q_norm, k_norm;            // [D], [H D] and [G D], or undefined
  FrozenProduct qkv;                    // [(H + 2 G) D, M]: q, k, v rows one after the other
  FrozenProduct o;                      // [M, H D]
  FrozenProduct gate_up;                // [2 I, M]: gate rows, then up rows
  FrozenProduct down;                   // [M, I]
  bool has_rope = true;
};

// Which slots make a product, in the order of its rows.
struct ProductSlots {
  FrozenProduct LayerWeights::*product;
  std::array<storage::Slot, 3> slots;
  std::size_t count;
  [[nodiscard]] std::span<const storage::Slot> all() const { return {slots.data(), count}; }
};
inline constexpr std::array<ProductSlots, 4> kProducts{
    {{&LayerWeights::qkv, {storage::Slot::kQ, storage::Slot::kK, storage::Slot::kV}, 3},
     {&LayerWeights::o, {storage::Slot::kO}, 1},
     {&LayerWeights::gate_up, {storage::Slot::kGate, storage::Slot::kUp}, 2},
     {&LayerWeights::down, {storage::Slot::kDown}, 1}}};

struct NormSlot {
  at::Tensor LayerWeights::*norm;
  storage::Slot slot;
};
inline constexpr std::array<NormSlot, 4> kNorms{
    {{&LayerWeights::attention_norm, storage::Slot::kAttentionNorm},
     {&LayerWeights::q_norm, storage::Slot::kQNorm},
     {&LayerWeights::k_norm, storage::Slot::kKNorm},
     {&LayerWeights::mlp_norm, storage::Slot::kMlpNorm}}};

}  // namespace hedgerow::worker
