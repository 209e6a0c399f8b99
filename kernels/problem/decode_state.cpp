#include "kernels/problem/decode_state.hpp"

#include <ATen/ATen.h>

#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels {

std::int64_t ring_slots(const HybridOptions& options) {
  if (options.window == WindowLayout::kNone) return 1;
  return options.window == WindowLayout::kSliding ? options.window_size : 2 * options.window_size;
}

std::int64_t num_heads_of(const HybridParameters& parameters, std::int64_t num_kv_heads) {
  const at::Tensor& factors = parameters.window_factors;
  return num_key_heads(parameters, factors.defined() ? factors.numel() : num_kv_heads);
}

DecodeState make_decode_state(std::int64_t batch,
                              std::int64_t num_key_heads,
                              std::int64_t num_kv_heads,
                              std::int64_t head_dim,
                              std::int64_t feature_dim,
                              at::ScalarType dtype,
                              const at::Device& device,
                              const HybridOptions& options) {
  const at::TensorOptions floats = at::TensorOptions(device).dtype(at::kFloat);
  DecodeState state;
  state.kv_state = at::zeros({batch, num_key_heads, feature_dim, head_dim}, floats);
  state.k_state = at::zeros({batch, num_key_heads, feature_dim}, floats);
  state.window_k =
      at::zeros({batch, num_kv_heads, ring_slots(options), head_dim}, floats.dtype(dtype));
  state.window_v = at::zeros_like(state.window_k);
  if (options.num_sinks > 0) {
    state.sink_k =
        at::zeros({batch, num_kv_heads, options.num_sinks, head_dim}, floats.dtype(dtype));
    state.sink_v = at::zeros_like(state.sink_k);
  }
  if (options.recall_cache > 0) {
    state.recall_k =
        at::zeros({batch, num_kv_heads, options.recall_cache, head_dim}, floats.dtype(dtype));
    state.recall_v = at::zeros_like(state.recall_k);
    state.recall_positions =
        at::full({batch, num_kv_heads, options.recall_cache}, -1, floats.dtype(at::kLong));
  }
  state.positions = at::zeros({batch}, floats.dtype(at::kLong));
  return state;
}

}  // namespace hedgerow::kernels
