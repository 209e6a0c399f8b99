// The layer of layer.hpp by ATen operations in fp32 under autograd: slow, short, and what the other
// is tested against.
#pragma once

#include <functional>

#include "worker/model/layer/layer.hpp"

namespace hedgerow::worker {

// h [B, T, M] fp32 -> the layer's output, not rounded. Gradients flow to whatever asks for them.
// Weights that are not packed.
[[nodiscard]] at::Tensor plain_layer(const at::Tensor& hidden_states,
                                     const LayerWeights& weights,
                                     const LayerContext& context,
                                     const std::function<at::Tensor(const Qkv&)>& attend,
                                     const LayerLora& lora = {});

}  // namespace hedgerow::worker
