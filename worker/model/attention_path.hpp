// With what a task computes attention on a GPU: the fused kernels of kernels/cuda, or ATen
// operations, which take their place without a word and are several times slower. Each task says it
// once. The words are the backends' own, asked with a layer's parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/attention_transfer_cuda.hpp"
#include "kernels/cuda/decode_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::worker {

enum class AttentionUse { kTransfer, kFinetune, kEvaluate, kGenerate };

struct AttentionPath {
  AttentionUse use = AttentionUse::kTransfer;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // of q, k and v
  std::int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  // Parameters of a layer with maps; null: softmax attention alone. They may lie on another device.
  const kernels::HybridParameters* parameters = nullptr;
  kernels::HybridOptions options{};
  double xent_factor = 0.0;  // of a transfer
};
[[nodiscard]] AttentionPath attention_path(AttentionUse use,
                                           const storage::ModelConfig& config,
                                           const at::Device& device,
                                           at::ScalarType dtype);
// The first layer that has maps; null: none has.
[[nodiscard]] const kernels::HybridParameters* first_parameters(
    const std::vector<std::optional<kernels::HybridParameters>>& layers);

// This build's; null: it has none.
struct AttentionBackends {
  const kernels::cuda::HybridBackend* hybrid = kernels::cuda::hybrid_backend();
  const kernels::cuda::TransferBackend* transfer = kernels::cuda::transfer_backend();
  const kernels::cuda::DecodeBackend* decode = kernels::cuda::decode_backend();
};

// Why some step of the task is not fused; empty: all are. Allocates one token on the device.
[[nodiscard]] std::string why_not_fused(const AttentionPath& path,
                                        const AttentionBackends& backends = {});

// Says it on stderr, in a line of its own, where the device is a GPU.
void say_attention(const AttentionPath& path);

}  // namespace hedgerow::worker
