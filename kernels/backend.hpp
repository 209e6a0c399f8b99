// The backends of the entries. Each has one in ATen operations, which runs wherever ATen does, and
// in fp64 too; and one fused for the CPU; all but the MSE alone also one fused for CUDA, for what
// its kernels take (the ATen backend computes the rest). The entries choose by the device of their
// first tensor; below, backends by name, so that tests and benches can run them beside one another.
// Contracts are those of the entries, with fp64 computed in this backend and not by the reference.
// Results are the same bytes from call to call on one device.
#pragma once

#include "kernels/attention_transfer.hpp"
#include "kernels/decode.hpp"
#include "kernels/hybrid_attention.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"

namespace hedgerow::kernels {

enum class Backend { kCpu, kCuda, kAten };

[[nodiscard]] inline Backend backend_for(const at::Tensor& x) {
  return x.is_cpu() ? Backend::kCpu : Backend::kAten;
}

namespace aten {

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options);
at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options);

at::Tensor window_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridOptions& options);

at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
at::Tensor softmax_attention_trainable(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v);

at::Tensor transfer_mse(const at::Tensor& y_pred, const at::Tensor& y_true);
at::Tensor transfer_cross_entropy(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options);

DecodeState prefill_state(const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& lengths,
                          const HybridParameters& parameters,
                          const HybridOptions& options);
at::Tensor decode_step(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       DecodeState& state,
                       const HybridParameters& parameters,
                       const HybridOptions& options);

}  // namespace aten

// The fused CUDA backends; each throws, saying why, where its kernels do not take the problem.
namespace cuda {

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options);
at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options);

DecodeState prefill_state(const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& lengths,
                          const HybridParameters& parameters,
                          const HybridOptions& options);
at::Tensor decode_step(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       DecodeState& state,
                       const HybridParameters& parameters,
                       const HybridOptions& options);
at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options);
at::Tensor transfer_cross_entropy(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options);

}  // namespace cuda
}  // namespace hedgerow::kernels
