// The split of a layer's q, k, v by heads with their norms and RoPE, and its gradient; rows, dtypes
// and forms as in norm.hpp.
#pragma once

#include "storage/model/model_config.hpp"
#include "worker/model/layer/norm.hpp"

namespace hedgerow::worker {

// cos and sin [T, D] fp32 of positions 0..T-1, both halves of D equal, computed as transformers
// does (fp32) from the configuration and never from a buffer in the weights.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable make_rope_table(const storage::ModelConfig& config,
                          std::int64_t num_positions,
                          const at::Device& device);
// A table of as many positions that turns nothing: x * 1 + x' * 0 is x.
RopeTable identity_like(const RopeTable& table);

// q [B, H, T, D], k and v [B, G, T, D] of qkv's dtype, contiguous.
struct Qkv {
  at::Tensor q, k, v;
};

// Weights of the norms of q and k, undefined where the model has none: [D] of each head by itself
// (Qwen3), or [H D] and [G D] of all heads together (OLMo 2).
struct HeadNorms {
  at::Tensor q, k;
  double eps = 1e-6;
};

// qkv [B, T, (H + 2 G) D] -> split by heads; q and k through their norms, then rotated: (x1, x2)
// halves of D -> (x1 cos - x2 sin, x2 cos + x1 sin); row t of the table belongs to token t of every
// sequence.
Qkv split_heads(const at::Tensor& qkv,
                std::int64_t num_heads,
                std::int64_t num_kv_heads,
                const RopeTable& rope,
                const HeadNorms& norms);

// The gradient of split_heads in qkv [B, T, (H + 2 G) D], given those of q, k, v. qkv itself is
// read only where there are norms and may be undefined otherwise.
at::Tensor split_heads_backward(const Qkv& gradient,
                                const at::Tensor& qkv,
                                const RopeTable& rope,
                                const HeadNorms& norms);

// The same by ATen operations in fp32, on any device.
Qkv plain_split_heads(const at::Tensor& qkv,
                      std::int64_t num_heads,
                      std::int64_t num_kv_heads,
                      const RopeTable& rope,
                      const HeadNorms& norms);
at::Tensor plain_split_heads_backward(const Qkv& gradient,
                                      const at::Tensor& qkv,
                                      const RopeTable& rope,
                                      const HeadNorms& norms);

}  // namespace hedgerow::worker
