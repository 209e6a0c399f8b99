// Every entry has two forms: one fused for its device (today: the CPU), and one in ATen operations
// that runs wherever ATen does, and in fp64 too. The entries choose by the device of their first
// tensor; below, the ATen form by name, so that tests and benches can run it on the CPU beside the
// fused one. Contracts are those of the entries, with fp64 computed in this form and not by the
// reference. Results are the same bytes from call to call on one device.
#pragma once

#include "kernels/decode.hpp"
#include "kernels/hybrid_attention.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"

namespace hedgerow::kernels {

enum class Form { kFused, kAten };

[[nodiscard]] inline Form form_for(const at::Tensor& x) {
  return x.is_cpu() ? Form::kFused : Form::kAten;
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
}  // namespace hedgerow::kernels
