// What one layer remembers of the tokens so far, for a batch of rows of different lengths: the
// recurrent state of a linearized layer (constant memory), or the keys and values of a layer that
// keeps its softmax attention (growing).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <variant>

#include "kernels/decode.hpp"
#include "worker/model/layer/rotary.hpp"

namespace hedgerow::worker {

// k and v [B, G, C, D]; row b has `lengths[b]` of the C slots filled. C doubles when a row is full.
struct KvCache {
  at::Tensor k, v;
  at::Tensor lengths;  // [B] int64
};

class AttentionCache {
 public:
  // The cache of one row's prompt: k and v [1, G, T, D]. parameters nullopt: softmax.
  AttentionCache(const Qkv& prompt,
                 const std::optional<kernels::HybridParameters>& parameters,
                 const kernels::HybridOptions& options);

  // Rows of several caches of one layer, in order.
  [[nodiscard]] static AttentionCache joined(std::vector<AttentionCache> rows);
  // Keeps the rows at `index` [n] int64.
  void keep(const at::Tensor& index);

  // One token a row: q [B, H, D], k and v [B, G, D] -> [B, H, D].
  at::Tensor step(const Qkv& token);

  // Whether a step launches the same fused kernels on the same tensors at every position.
  [[nodiscard]] bool is_fused() const;

  [[nodiscard]] std::int64_t bytes() const;

 private:
  std::optional<kernels::HybridParameters> parameters_;
  kernels::HybridOptions options_;
  std::variant<kernels::DecodeState, KvCache> state_;
};

}  // namespace hedgerow::worker
