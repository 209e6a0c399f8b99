#include "kernels/decode.hpp"

#include <ATen/ATen.h>

#include "kernels/aten/decode_aten.hpp"
#include "kernels/cpu/decode_cpu.hpp"
#include "kernels/cuda/decode_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"

namespace hedgerow::kernels {
namespace {

// fp64 has a reference but no recurrent backend.
void check_input(const char* what, const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
              "decode: ",
              what,
              " must be float32 or bfloat16, found ",
              x.scalar_type());
}

// A backend reads the state through pointers of its own device.
void check_state_device(const DecodeState& state, const at::Device& device) {
  for (const auto& [name, tensor] : {std::pair{"kv_state", &state.kv_state},
                                     {"k_state", &state.k_state},
                                     {"window_k", &state.window_k},
                                     {"window_v", &state.window_v},
                                     {"positions", &state.positions}}) {
    TORCH_CHECK(tensor->device() == device,
                "decode: ",
                name,
                " must be on q's device ",
                device,
                ", found ",
                tensor->device());
  }
}

void check_state(const DecodeState& state,
                 const AttentionShape& shape,
                 std::int64_t key_heads,
                 std::int64_t features,
                 const HybridOptions& options) {
  const std::vector<std::int64_t> kv_state = {shape.B, key_heads, features, shape.D};
  const std::vector<std::int64_t> sinks = {shape.B, shape.G, options.num_sinks, shape.D};
  const std::vector<std::int64_t> window = {shape.B, shape.G, ring_slots(options), shape.D};
  TORCH_CHECK(state.kv_state.sizes() == at::IntArrayRef(kv_state) && state.kv_state.is_contiguous(),
              "decode: kv_state must be contiguous ",
              describe(kv_state),
              ", found ",
              describe(state.kv_state.sizes()));
  TORCH_CHECK(state.window_k.sizes() == at::IntArrayRef(window) && state.window_k.is_contiguous() &&
                  state.window_v.sizes() == at::IntArrayRef(window) &&
                  state.window_v.is_contiguous(),
              "decode: window_k and window_v must be contiguous ",
              describe(window),
              ", found ",
              describe(state.window_k.sizes()),
              " and ",
              describe(state.window_v.sizes()));
  TORCH_CHECK(options.num_sinks == 0 || (state.sink_k.defined() && state.sink_v.defined()),
              "decode: the state must have sink_k and sink_v, num_sinks is ",
              options.num_sinks);
  TORCH_CHECK(options.num_sinks == 0 ||
                  (state.sink_k.sizes() == at::IntArrayRef(sinks) && state.sink_k.is_contiguous() &&
                   state.sink_v.sizes() == at::IntArrayRef(sinks) && state.sink_v.is_contiguous() &&
                   state.sink_k.scalar_type() == state.window_k.scalar_type() &&
                   state.sink_v.scalar_type() == state.window_k.scalar_type() &&
                   state.sink_k.device() == state.window_k.device() &&
                   state.sink_v.device() == state.window_k.device()),
              "decode: sink_k and sink_v must be contiguous ",
              describe(sinks),
              " of window_k's dtype and on its device");
  const std::vector<std::int64_t> recall = {shape.B, shape.G, options.recall_cache, shape.D};
  TORCH_CHECK(options.recall_cache == 0
                  ? !state.recall_k.defined()
                  : state.recall_k.defined() && state.recall_v.defined() &&
                        state.recall_positions.defined() &&
                        state.recall_k.sizes() == at::IntArrayRef(recall) &&
                        state.recall_v.sizes() == at::IntArrayRef(recall) &&
                        state.recall_k.is_contiguous() && state.recall_v.is_contiguous() &&
                        state.recall_positions.is_contiguous() &&
                        state.recall_positions.sizes() == at::IntArrayRef(recall).slice(0, 3) &&
                        state.recall_k.scalar_type() == state.window_k.scalar_type() &&
                        state.recall_v.scalar_type() == state.window_k.scalar_type() &&
                        state.recall_positions.scalar_type() == at::kLong &&
                        state.recall_k.device() == state.window_k.device() &&
                        state.recall_v.device() == state.window_k.device() &&
                        state.recall_positions.device() == state.window_k.device(),
              "decode: the state must have recall_k and recall_v of window_k's dtype, contiguous ",
              describe(recall),
              ", and int64 recall_positions, on its device, as recall_cache says; one made without "
              "a cache does "
              "not go on with one");
  TORCH_CHECK(
      state.kv_state.scalar_type() == at::kFloat && state.k_state.scalar_type() == at::kFloat,
      "decode: kv_state and k_state must be float32, found ",
      state.kv_state.scalar_type(),
      " and ",
      state.k_state.scalar_type());
  TORCH_CHECK(state.window_v.scalar_type() == state.window_k.scalar_type(),
              "decode: window_v must have window_k's dtype ",
              state.window_k.scalar_type(),
              ", found ",
              state.window_v.scalar_type());
  TORCH_CHECK(
      state.k_state.numel() == shape.B * key_heads * features && state.k_state.is_contiguous(),
      "decode: k_state must be contiguous [B, U, F], found ",
      describe(state.k_state.sizes()));
  TORCH_CHECK(state.positions.numel() == shape.B && state.positions.is_contiguous() &&
                  state.positions.scalar_type() == at::kLong,
              "decode: positions must be contiguous int64 of ",
              shape.B,
              " rows, found ",
              state.positions.scalar_type(),
              " ",
              describe(state.positions.sizes()));
}

// Empty, with the positions of what prefill is to fill it with.
DecodeState checked_state(const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& lengths,
                          const HybridParameters& parameters,
                          const HybridOptions& options) {
  check_prefill(k, v, lengths);
  const at::Tensor counts = lengths.to(at::kLong).contiguous();
  TORCH_CHECK(
      counts.min().item<std::int64_t>() >= 1 && counts.max().item<std::int64_t>() <= k.size(2),
      "decode: lengths must lie in 1..",
      k.size(2),
      ", found ",
      counts.min().item<std::int64_t>(),
      "..",
      counts.max().item<std::int64_t>());
  const std::int64_t key_heads = num_heads_of(parameters, k.size(1));
  // Queries play no part; what the parameters say of their heads must agree.
  const std::int64_t num_heads = num_query_heads(parameters, key_heads);
  const std::int64_t features =
      check_parameters(parameters, options, num_heads, k.size(1), k.size(3), k.device());
  DecodeState state = make_decode_state(
      k.size(0), key_heads, k.size(1), k.size(3), features, k.scalar_type(), k.device(), options);
  // From pageable memory: the values are taken before the call returns, and the device's queue is
  // not waited for.
  state.positions.copy_(counts, /*non_blocking=*/true);
  return state;
}

void check_step(const at::Tensor& q,
                const at::Tensor& k,
                const at::Tensor& v,
                const DecodeState& state,
                const HybridParameters& parameters,
                const HybridOptions& options) {
  const AttentionShape shape = check_token(q, k, v);
  const std::int64_t features =
      check_parameters(parameters, options, shape.H, shape.G, shape.D, q.device());
  check_state(state, shape, num_key_heads(parameters, shape.H), features, options);
  check_state_device(state, q.device());
  TORCH_CHECK(state.window_k.scalar_type() == q.scalar_type(),
              "decode: q must have the state's dtype ",
              state.window_k.scalar_type(),
              ", found ",
              q.scalar_type());
}

// A state that was filled without knowing its query heads: they share what their kv head has seen.
void spread_over_heads(DecodeState& state, const HybridParameters& parameters, std::int64_t heads) {
  const std::int64_t held = state.kv_state.size(1);
  if (parameters.k.layer.defined() || parameters.k.bias.defined() ||
      parameters.window_factors.defined() || held == heads || held < 1 || heads % held != 0) {
    return;
  }
  state.kv_state = state.kv_state.repeat_interleave(heads / held, 1);
  state.k_state = state.k_state.repeat_interleave(heads / held, 1);
}

// Why no CUDA kernel takes the state; empty where one does.
std::string why_no_decode(const DecodeState& state,
                          const HybridParameters& parameters,
                          const HybridOptions& options) {
  const cuda::DecodeBackend* fused = cuda::decode_backend();
  return fused == nullptr ? cuda::kNoCudaKernels : fused->why_not(state, parameters, options);
}

// CUDA has no fused prefill with a recall cache: a prompt's choices, one after another, are ATen
// operations there. They leave the state that a fused step goes on with.
std::string why_no_prefill(const DecodeState& state,
                           const HybridParameters& parameters,
                           const HybridOptions& options) {
  std::string reason = why_no_decode(state, parameters, options);
  if (reason.empty() && options.recall_cache > 0) {
    reason = c10::str("no CUDA kernel prefills with a recall cache; found recall_cache ",
                      options.recall_cache,
                      ", which the ATen backend takes");
  }
  return reason;
}

}  // namespace

void check_prefill(const at::Tensor& k, const at::Tensor& v, const at::Tensor& lengths) {
  TORCH_CHECK(k.dim() == 4, "decode: k must be [B, G, T, D], found ", describe(k.sizes()));
  check_input("k", k);
  check_attention(k, k, v);
  TORCH_CHECK(lengths.numel() == k.size(0),
              "decode: lengths must hold ",
              k.size(0),
              " rows, found ",
              describe(lengths.sizes()));
}

AttentionShape check_token(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() == 3, "decode: q must be [B, H, D], found ", describe(q.sizes()));
  TORCH_CHECK(k.dim() == 3 && v.dim() == 3,
              "decode: k and v must be [B, G, D], found ",
              describe(k.sizes()),
              " and ",
              describe(v.sizes()));
  check_input("q", q);
  return check_attention(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2));
}

DecodeState prefill_state(const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& lengths,
                          const HybridParameters& parameters,
                          const HybridOptions& options,
                          Backend backend) {
  DecodeState state = checked_state(k, v, lengths, parameters, options);
  switch (choose_hybrid_backend("decode", backend, state.kv_state, options, [&] {
    return why_no_prefill(state, parameters, options);
  })) {
    case Backend::kCpu:
      cpu::prefill_state_cpu(k, v, parameters, options, state);
      break;
    case Backend::kCuda:
      cuda::decode_backend()->prefill(k, v, parameters, options, state);
      break;
    case Backend::kAuto:
    case Backend::kAten:
      aten::prefill_state_aten(k, v, parameters, options, state);
  }
  return state;
}

at::Tensor decode_step(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       DecodeState& state,
                       const HybridParameters& parameters,
                       const HybridOptions& options,
                       Backend backend) {
  if (q.dim() == 3) spread_over_heads(state, parameters, q.size(1));
  check_step(q, k, v, state, parameters, options);
  switch (choose_hybrid_backend("decode", backend, state.kv_state, options, [&] {
    return why_no_decode(state, parameters, options);
  })) {
    case Backend::kCpu:
      return cpu::decode_step_cpu(q, k, v, parameters, options, state);
    case Backend::kCuda:
      return cuda::decode_backend()->step(q, k, v, parameters, options, state);
    case Backend::kAuto:
    case Backend::kAten:
      break;
  }
  return aten::decode_step_aten(q, k, v, parameters, options, state);
}

}  // namespace hedgerow::kernels
