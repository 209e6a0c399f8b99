// What a decoder layer does between its matrix products, and its gradients, fused for CUDA: tensors
// to the kernels of kernels/cuda/elementwise. worker/model/layer says what is computed and takes
// ATen operations where this backend does not apply. A build without CUDA has no backend; the tests
// give it one that runs the same kernels on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace hedgerow::kernels::cuda {

// Heads of a packed projection [B, T, (H + 2 G) D].
struct HeadLayout {
  std::int64_t H = 0, G = 0;
  at::Tensor cos, sin;        // [T, D] fp32
  at::Tensor q_norm, k_norm;  // [D] fp32, undefined where there are none
  double eps = 0;
};

// On the current stream of the tensors' device, outputs from ATen's caching allocator. Never waits.
// Values in fp32, rounded once; a row's bytes depend on that row alone.
struct ElementwiseBackend {
  // bf16, rows of a multiple of 8 elements.
  bool (*takes)(const at::Tensor& rows);
  // D a power of two from 16 to 512.
  bool (*takes_heads)(const at::Tensor& rows, std::int64_t head_dim);

  at::Tensor (*rms_norm)(const at::Tensor& x, const at::Tensor& weight, double eps);
  // The rounded sum, and its norm.
  std::array<at::Tensor, 2> (*add_rms_norm)(const at::Tensor& residual,
                                            const at::Tensor& update,
                                            const at::Tensor& weight,
                                            double eps);
  at::Tensor (*rms_norm_backward)(const at::Tensor& residual_gradient,
                                  const at::Tensor& output_gradient,
                                  const at::Tensor& low_rank,  // fp32 or undefined
                                  const at::Tensor& x,
                                  const at::Tensor& weight,
                                  double eps);
  at::Tensor (*swiglu)(const at::Tensor& gate_up);
  at::Tensor (*swiglu_backward)(const at::Tensor& output_gradient, const at::Tensor& gate_up);
  std::array<at::Tensor, 3> (*split_heads)(const at::Tensor& qkv, const HeadLayout& heads);
  // qkv may be undefined where there are no norms.
  at::Tensor (*split_heads_backward)(const std::array<at::Tensor, 3>& gradient,
                                     const at::Tensor& qkv,
                                     const HeadLayout& heads);
};

// Null as hybrid_backend().
[[nodiscard]] const ElementwiseBackend* elementwise_backend();

}  // namespace hedgerow::kernels::cuda
