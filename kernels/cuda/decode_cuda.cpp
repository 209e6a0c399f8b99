#include "kernels/cuda/decode_cuda.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "kernels/cuda/decode/decode_launch.hpp"
#include "kernels/cuda/hybrid_problem_cuda.hpp"
#include "kernels/cuda/stream.hpp"

namespace hedgerow::kernels::cuda {
namespace {

bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

std::string why_not(const DecodeState& state,
                    const HybridParameters& parameters,
                    const HybridOptions& options) {
  const c10::DeviceGuard guard(state.kv_state.device());
  const std::int64_t D = state.kv_state.size(3), F = state.kv_state.size(2);
  if (state.window_k.scalar_type() != at::kBFloat16) {
    return c10::str("the CUDA decode kernels take bfloat16, not ", state.window_k.scalar_type());
  }
  if (!row_of(options.feature_map).is_activation()) {
    return "the CUDA decode kernels have no positive random and no Taylor features";
  }
  const std::int64_t columns_q = columns_of(parameters.q, D),
                     columns_k = columns_of(parameters.k, D);
  const int head_dim = static_cast<int>(D), features = static_cast<int>(F);
  if (F > kMostDecodeFeatures ||
      !has_decode_kernel(head_dim, static_cast<int>(columns_q), features) ||
      !has_decode_kernel(head_dim, static_cast<int>(columns_k), features)) {
    return c10::str("no CUDA decode kernel for head_dim ",
                    D,
                    ", maps of ",
                    columns_q,
                    " and ",
                    columns_k,
                    " columns and ",
                    F,
                    " features; there are head_dim 64 and 128, for a multiple of 4 columns and at "
                    "most 256 features");
  }
  const bool recalls = options.recall_cache > 0;
  if (recalls && options.window_size > kMostRecallWindow) {
    return c10::str("the CUDA decode kernels choose a recall cache from windows of at most ",
                    kMostRecallWindow,
                    " tokens, not ",
                    options.window_size);
  }
  for (const at::Tensor* tensor : {&state.kv_state,
                                   &state.window_k,
                                   &state.window_v,
                                   &state.sink_k,
                                   &state.sink_v,
                                   &state.recall_k,
                                   &state.recall_v}) {
    if (tensor->defined() && !is_aligned(*tensor)) {
      return "the CUDA decode kernels want a state that is aligned to 16 bytes";
    }
  }
  return why_not_shared("the CUDA decode kernels",
                        decode_shared_bytes(head_dim, features, recalls));
}

// A call in the kernels' terms, with what backs the pointers.
struct Call {
  DecodeBatch batch;
  DecodeMap map_q, map_k;
  Stream stream = nullptr;
  std::vector<at::Tensor> kept;

  const float* floats_of(const at::Tensor& x) {
    if (!x.defined()) {
      return nullptr;
    }
    at::Tensor values = x.to(at::kFloat).contiguous();
    kept.push_back(is_aligned(values) ? values : values.clone());
    return kept.back().const_data_ptr<float>();
  }

  DecodeMap map_of(const FeatureMapWeights& weights, const FeatureMapOptions& options) {
    DecodeMap map;
    map.function = map_function(options);
    map.columns = static_cast<int>(columns_of(weights, batch.D));
    map.negation = batch.F == 2 * map.columns;
    map.layer = floats_of(weights.layer);
    map.bias = floats_of(weights.bias);
    return map;
  }

  Call(const DecodeState& state,
       std::int64_t num_heads,
       std::int64_t kv_heads,
       const HybridParameters& parameters,
       const HybridOptions& options) {
    batch.B = static_cast<int>(state.kv_state.size(0));
    batch.H = static_cast<int>(num_heads);
    batch.U = static_cast<int>(state.kv_state.size(1));
    batch.G = static_cast<int>(kv_heads);
    batch.F = static_cast<int>(state.kv_state.size(2));
    batch.D = static_cast<int>(state.kv_state.size(3));
    batch.slots = static_cast<int>(state.window_k.size(2));
    const int window = options.window == WindowLayout::kTerraced ? batch.slots / 2 : batch.slots;
    static_cast<WindowArguments&>(batch) = window_arguments(options, window, options.num_sinks);
    batch.positions = state.positions.data_ptr<std::int64_t>();
    batch.kv_state = state.kv_state.data_ptr<float>();
    batch.k_state = state.k_state.data_ptr<float>();
    batch.ring_k = bf16_out(state.window_k);
    batch.ring_v = bf16_out(state.window_v);
    if (options.num_sinks > 0) {
      batch.sink_k = bf16_out(state.sink_k);
      batch.sink_v = bf16_out(state.sink_v);
    }
    if (options.recall_cache > 0) {
      batch.recalled = static_cast<int>(options.recall_cache);
      batch.recall_positions = state.recall_positions.data_ptr<std::int64_t>();
      batch.recall_k = bf16_out(state.recall_k);
      batch.recall_v = bf16_out(state.recall_v);
    }
    map_q = map_of(parameters.q, options);
    map_k = map_of(parameters.k, options);
    stream = current_stream(state.kv_state.device());
  }

  [[nodiscard]] int slices_of_head() const { return batch.D / 64; }
  // Where a threadblock may walk several query heads: as many as leave two of them to every
  // multiprocessor.
  [[nodiscard]] bool fills_card(int threadblocks) const {
    return threadblocks >= 2 * device_limits().multiprocessors;
  }
};

void prefill(const at::Tensor& k,
             const at::Tensor& v,
             const HybridParameters& parameters,
             const HybridOptions& options,
             const DecodeState& state) {
  const c10::NoGradGuard no_grad;
  const c10::DeviceGuard guard(k.device());
  // Queries play no part.
  Call call(state, state.kv_state.size(1), k.size(1), parameters, options);
  const Rows keys = rows_of(k, call.kept), values = rows_of(v, call.kept);
  DecodeStateArguments prompt;
  prompt.batch = call.batch;
  prompt.map_k = call.map_k;
  prompt.prompt = true;
  prompt.k = keys;
  prompt.v = values;
  prompt.rows = static_cast<int>(k.size(2));
  launch_decode_state(prompt, call.stream);
  if (options.window != WindowLayout::kNone) {
    DecodeRingArguments ring;
    ring.batch = call.batch;
    ring.prompt = true;
    ring.k = keys;
    ring.v = values;
    launch_decode_ring(ring, call.stream);
  }
}

// What joins (S, z) before the step: of the ring or, without a window, the new token.
void join_state(const Call& call, const Rows& k, const Rows& v) {
  const DecodeBatch& batch = call.batch;
  const std::int64_t token = batch.D, head = batch.slots * token;
  DecodeStateArguments flush;
  flush.batch = batch;
  flush.map_k = call.map_k;
  if (batch.layout == WindowLayout::kNone) {
    flush.k = k;
    flush.v = v;
    flush.rows = 1;
  } else {
    flush.k = {batch.ring_k, batch.G * head, head, token};
    flush.v = {batch.ring_v, batch.G * head, head, token};
    flush.rows = batch.slots;
  }
  // Most rows of a terraced window have nothing to flush: few threadblocks look at each.
  if (batch.layout == WindowLayout::kTerraced && call.fills_card(batch.B * batch.G)) {
    flush.slices = batch.key_heads() * call.slices_of_head();
  }
  launch_decode_state(flush, call.stream);
}

at::Tensor step(const at::Tensor& q,
                const at::Tensor& k,
                const at::Tensor& v,
                const HybridParameters& parameters,
                const HybridOptions& options,
                const DecodeState& state) {
  const c10::NoGradGuard no_grad;
  const c10::DeviceGuard guard(q.device());
  Call call(state, q.size(1), k.size(1), parameters, options);
  const at::Tensor y = at::empty(q.sizes(), q.options());
  DecodeStepArguments token;
  token.batch = call.batch;
  token.map_q = call.map_q;
  token.map_k = call.map_k;
  token.q = rows_of(q.unsqueeze(2), call.kept);
  token.k = rows_of(k.unsqueeze(2), call.kept);
  token.v = rows_of(v.unsqueeze(2), call.kept);
  if (options.window != WindowLayout::kNone) {
    token.factors = call.floats_of(parameters.window_factors);
  }
  token.y = bf16_out(y);
  const bool recalls = options.recall_cache > 0;
  if (recalls) {
    DecodeRecallArguments choice;
    choice.batch = call.batch;
    choice.map_k = call.map_k;
    launch_decode_recall(choice, call.stream);
  }
  // What leaves a terraced window is in the choice.
  if (options.window == WindowLayout::kTerraced ? !recalls : call.batch.shares_states()) {
    join_state(call, token.k, token.v);
  }
  for (const int heads : {2, 4}) {
    const int parts = (call.batch.group() + heads - 1) / heads;
    if (call.batch.group() > heads / 2 && call.fills_card(call.batch.B * call.batch.G * parts)) {
      token.heads = heads;
    }
  }
  launch_decode_step(token, call.stream);
  DecodeRingArguments ring;
  ring.batch = call.batch;
  ring.k = token.k;
  ring.v = token.v;
  ring.kv_heads = call.batch.G;
  launch_decode_ring(ring, call.stream);
  return y;
}

}  // namespace

const DecodeBackend* decode_backend() {
  static constexpr DecodeBackend kBackend{&why_not, &prefill, &step};
  return &kBackend;
}

}  // namespace hedgerow::kernels::cuda
