#include "worker/generate/attention_cache.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/decode_cuda.hpp"

namespace hedgerow::worker {
namespace {

using kernels::DecodeState;

// The tensors of a state whose first dimension is the batch.
std::vector<at::Tensor*> fields(DecodeState& state) {
  std::vector<at::Tensor*> all = {&state.kv_state,
                                  &state.k_state,
                                  &state.window_k,
                                  &state.window_v,
                                  &state.sink_k,
                                  &state.sink_v,
                                  &state.recall_k,
                                  &state.recall_v,
                                  &state.recall_positions,
                                  &state.positions};
  std::erase_if(all, [](const at::Tensor* tensor) { return !tensor->defined(); });
  return all;
}
std::vector<at::Tensor*> fields(KvCache& cache) { return {&cache.k, &cache.v, &cache.lengths}; }

at::Tensor with_capacity(const at::Tensor& x, std::int64_t capacity) {
  if (x.size(2) == capacity) return x;
  at::Tensor larger = at::zeros({x.size(0), x.size(1), capacity, x.size(3)}, x.options());
  larger.narrow(2, 0, x.size(2)).copy_(x);
  return larger;
}

// Slot lengths[b] of row b.
void append(at::Tensor& cache, const at::Tensor& token, const at::Tensor& lengths) {
  const at::Tensor slot = lengths.view({-1, 1, 1, 1}).expand({-1, cache.size(1), 1, cache.size(3)});
  cache.scatter_(2, slot, token.unsqueeze(2));
}

at::Tensor softmax_step(const Qkv& token, KvCache& cache) {
  if (cache.lengths.max().item<std::int64_t>() == cache.k.size(2)) {
    cache.k = with_capacity(cache.k, 2 * cache.k.size(2));
    cache.v = with_capacity(cache.v, 2 * cache.v.size(2));
  }
  append(cache.k, token.k, cache.lengths);
  append(cache.v, token.v, cache.lengths);
  cache.lengths += 1;
  const std::int64_t batch = token.q.size(0), heads = token.q.size(1), dim = token.q.size(2);
  const std::int64_t kv_heads = token.k.size(1), capacity = cache.k.size(2);
  const at::Tensor q = token.q.to(at::kFloat).view({batch, kv_heads, heads / kv_heads, dim});
  at::Tensor scores =
      at::matmul(q, cache.k.to(at::kFloat).transpose(2, 3)) / std::sqrt(static_cast<double>(dim));
  const at::Tensor empty = at::arange(capacity, cache.lengths.options()).view({1, 1, 1, -1}) >=
                           cache.lengths.view({-1, 1, 1, 1});
  scores.masked_fill_(empty, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), cache.v.to(at::kFloat))
      .reshape({batch, heads, dim})
      .to(token.q.scalar_type());
}

}  // namespace

AttentionCache::AttentionCache(const Qkv& prompt,
                               const std::optional<kernels::HybridParameters>& parameters,
                               const kernels::HybridOptions& options)
    : parameters_(parameters), options_(options) {
  // On the CPU, where a prefill checks it without waiting for the device.
  const at::Tensor length = at::full({1}, prompt.k.size(2), at::kLong);
  if (parameters_) {
    state_ = kernels::prefill_state(prompt.k, prompt.v, length, *parameters_, options_);
  } else {
    state_ = KvCache{prompt.k, prompt.v, length.to(prompt.k.device())};
  }
}

AttentionCache AttentionCache::joined(std::vector<AttentionCache> rows) {
  AttentionCache all = rows.front();
  if (auto* cache = std::get_if<KvCache>(&all.state_)) {
    std::int64_t capacity = 1;
    for (const auto& row : rows)
      capacity = std::max(capacity, std::get<KvCache>(row.state_).k.size(2));
    for (auto& row : rows) {
      auto& kv = std::get<KvCache>(row.state_);
      kv.k = with_capacity(kv.k, capacity);
      kv.v = with_capacity(kv.v, capacity);
    }
    *cache = std::get<KvCache>(rows.front().state_);
  }
  std::visit(
      [&rows](auto& state) {
        using State = std::remove_reference_t<decltype(state)>;
        const auto targets = fields(state);
        for (std::size_t i = 0; i < targets.size(); ++i) {
          std::vector<at::Tensor> parts;
          for (auto& row : rows) parts.push_back(*fields(std::get<State>(row.state_))[i]);
          *targets[i] = at::cat(parts);
        }
      },
      all.state_);
  return all;
}

void AttentionCache::keep(const at::Tensor& index) {
  std::visit(
      [&index](auto& state) {
        for (at::Tensor* field : fields(state))
          *field = field->index_select(0, index.to(field->device()));
      },
      state_);
}

bool AttentionCache::is_fused() const {
  const auto* state = std::get_if<DecodeState>(&state_);
  const kernels::cuda::DecodeBackend* backend = kernels::cuda::decode_backend();
  return state != nullptr && backend != nullptr &&
         backend->why_not(*state, *parameters_, options_).empty();
}

at::Tensor AttentionCache::step(const Qkv& token) {
  if (auto* cache = std::get_if<KvCache>(&state_)) return softmax_step(token, *cache);
  return kernels::decode_step(
      token.q, token.k, token.v, std::get<DecodeState>(state_), *parameters_, options_);
}

std::int64_t AttentionCache::bytes() const {
  AttentionCache copy = *this;
  return std::visit(
      [](auto& state) {
        std::int64_t sum = 0;
        for (const at::Tensor* field : fields(state))
          sum += static_cast<std::int64_t>(field->nbytes());
        return sum;
      },
      copy.state_);
}

}  // namespace hedgerow::worker
