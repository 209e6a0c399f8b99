#include "worker/model/attention_path.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdio>

#include "kernels/problem/feature_map.hpp"

namespace hedgerow::worker {
namespace {

using kernels::HybridParameters;

// The first reason of those that are asked, each only while there is none.
class Reason {
 public:
  template <typename Ask>
  Reason& unless(const Ask& ask) {
    if (text_.empty()) text_ = ask();
    return *this;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string why_no_decode(const AttentionPath& path, const AttentionBackends& backends) {
  const HybridParameters& parameters = *path.parameters;
  const kernels::DecodeState state = kernels::make_decode_state(
      1,
      kernels::num_heads_of(parameters, path.num_key_value_heads),
      path.num_key_value_heads,
      path.head_dim,
      kernels::feature_dim(parameters.q, path.options, path.head_dim),
      path.dtype,
      path.device,
      path.options);
  return backends.decode->why_not(state, parameters, path.options);
}

}  // namespace

AttentionPath attention_path(AttentionUse use,
                             const storage::ModelConfig& config,
                             const at::Device& device,
                             at::ScalarType dtype) {
  return {.use = use,
          .device = device,
          .dtype = dtype,
          .num_attention_heads = config.num_attention_heads,
          .num_key_value_heads = config.num_key_value_heads,
          .head_dim = config.head_dim};
}

const HybridParameters* first_parameters(
    const std::vector<std::optional<HybridParameters>>& layers) {
  const auto found = std::ranges::find_if(layers, [](const auto& layer) {
    return layer && (layer->q.layer.defined() || layer->window_factors.defined());
  });
  return found == layers.end() ? nullptr : &**found;
}

std::string why_not_fused(const AttentionPath& path, const AttentionBackends& backends) {
  if (backends.hybrid == nullptr || backends.transfer == nullptr || backends.decode == nullptr)
    return kernels::cuda::kNoCudaKernels;
  const at::Tensor q = at::empty({1, path.num_attention_heads, 1, path.head_dim},
                                 at::TensorOptions(path.dtype).device(path.device));
  const bool has_teacher = path.use != AttentionUse::kFinetune;
  Reason reason;
  reason.unless([&] { return has_teacher ? backends.transfer->why_no_softmax(q) : ""; });
  if (path.parameters == nullptr) return reason.text();
  const HybridParameters& parameters = *path.parameters;
  const bool infers = path.use == AttentionUse::kEvaluate || path.use == AttentionUse::kGenerate;
  if (infers && path.options.recall_cache > 0)
    reason.unless([] {
      return "a recall cache (attention.recall_cache > 0) has no fused kernel but the decode "
             "step's";
    });
  reason.unless([&] {
    return backends.hybrid->why_not(
        q, parameters, path.options, path.use == AttentionUse::kFinetune);
  });
  if (path.use == AttentionUse::kTransfer) {
    reason.unless([&] { return backends.transfer->why_no_transfer(q, parameters, path.options); });
    if (path.xent_factor > 0.0) {
      reason.unless(
          [&] { return backends.transfer->why_no_cross_entropy(q, parameters, path.options); });
    }
  }
  if (path.use == AttentionUse::kGenerate)
    reason.unless([&] { return why_no_decode(path, backends); });
  return reason.text();
}

void say_attention(const AttentionPath& path) {
  if (!path.device.is_cuda()) return;
  const std::string why = why_not_fused(path);
  std::fprintf(stderr,
               "hedgerow-worker: attention: %s%s\n",
               why.empty() ? "fused CUDA kernels" : "ATen operations, which are slower: ",
               why.c_str());
}

}  // namespace hedgerow::worker
