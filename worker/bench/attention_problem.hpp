// One attention problem of a bench, drawn at random, and the calls that are timed on it. Values are
// those of a layer at its start: unit queries and keys, projections that keep their scale, g = 0.1.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/hybrid_attention.hpp"
#include "storage/model/attention_spec.hpp"
#include "worker/bench/kernel_costs.hpp"

namespace hedgerow::worker::bench {

struct AttentionInputs {
  at::Tensor q, k, v;  // [B, H, T, D], [B, G, T, D]; of decode q is [B, H, 1, D]
  at::Tensor dy;       // as q; undefined where nothing goes backward
};

// fp32; the same draw for the same size.
[[nodiscard]] AttentionInputs draw_inputs(const AttentionSize& size,
                                          BenchDirection direction,
                                          const at::Device& device);

// One draw in every dtype that a contender takes, each made when it is first asked for and kept, so
// that contenders of one dtype share their inputs. One thread.
class CastInputs {
 public:
  explicit CastInputs(AttentionInputs drawn) : fp32_(std::move(drawn)) {}
  [[nodiscard]] const AttentionInputs& in(BenchDtype dtype);

 private:
  AttentionInputs fp32_;
  std::optional<AttentionInputs> bf16_;
};

struct HybridCase {
  kernels::HybridParameters parameters;  // leaves that want gradients
  kernels::HybridOptions options;
  MapSize map;
  [[nodiscard]] std::vector<at::Tensor> trained() const;  // those that are defined
};

[[nodiscard]] HybridCase draw_hybrid(const storage::AttentionSpec& spec,
                                     std::int64_t num_heads,
                                     std::int64_t num_kv_heads,
                                     std::int64_t head_dim,
                                     const at::Device& device);

using Attention =
    std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;

// The call to time: `attention` forward, or the gradients of q, k, v and `parameters` alone (the
// forward ran before and its graph is kept), or both. Not for decode.
[[nodiscard]] std::function<void()> attention_call(const AttentionInputs& inputs,
                                                   const Attention& attention,
                                                   const std::vector<at::Tensor>& parameters,
                                                   BenchDirection direction);

// The same of the hybrid; of decode, one step behind a context of all keys, which it then grows.
[[nodiscard]] std::function<void()> hybrid_call(const AttentionInputs& inputs,
                                                const HybridCase& hybrid,
                                                BenchDirection direction);

}  // namespace hedgerow::worker::bench
