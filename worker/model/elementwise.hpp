// What a decoder layer does between its matrix products, one pass over memory each, without
// autograd: RMSNorm, rotary embedding with the head split, SwiGLU, residual addition. Every value
// is computed in fp32 and rounded once, where transformers rounds after each operation in bf16; in
// fp32 the two agree to the last bits. A row's result depends on that row alone, never on the
// number of rows or of threads. On the CPU these are hand-written loops (elementwise_cpu.cpp), on
// CUDA in bf16 fused kernels (kernels/cuda/elementwise_cuda.hpp); elsewhere the plain_ forms run,
// which are also the tests' reference.
//
// Rows are tokens: B sequences of T tokens are [B, T, ...], contiguous. dtype: bf16 or fp32. Norm
// weights are fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/cuda/elementwise_cuda.hpp"

namespace hedgerow::worker {

// The fused CUDA backend where it takes these rows, else null.
[[nodiscard]] const kernels::cuda::ElementwiseBackend* fused_for(const at::Tensor& rows);

// x / sqrt(mean(x^2) + eps) * weight over the last dimension; x [..., M], weight [M] fp32 -> x's
// dtype.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

struct Normed {
  at::Tensor hidden_states;  // residual + update, rounded to their dtype
  at::Tensor normed;         // rms_norm of the rounded sum
};
Normed add_rms_norm(const at::Tensor& residual,
                    const at::Tensor& update,
                    const at::Tensor& weight,
                    double eps);

// residual + update, rounded to `stream` (bf16, fp16 or fp32) and returned in residual's dtype.
at::Tensor add_round(const at::Tensor& residual, const at::Tensor& update, at::ScalarType stream);

// gate_up [..., 2 I] (gate, then up) -> silu(gate) * up, [..., I].
at::Tensor swiglu(const at::Tensor& gate_up);

// q [B, H, T, D], k and v [B, G, T, D] of qkv's dtype, contiguous.
struct Qkv {
  at::Tensor q, k, v;
};
// qkv [B, T, (H + 2 G) D] -> split by heads; q and k through their norms when q_norm and k_norm [D]
// are defined (Qwen3), then rotated: (x1, x2) halves of D -> (x1 cos - x2 sin, x2 cos + x1 sin);
// cos and sin [T, D] fp32 (both halves equal, as transformers keeps them), row t of which belongs
// to token t of every sequence.
struct HeadNorms {
  at::Tensor q, k;
  double eps = 1e-6;
};
Qkv split_heads(const at::Tensor& qkv,
                std::int64_t num_heads,
                std::int64_t num_kv_heads,
                const at::Tensor& cos,
                const at::Tensor& sin,
                const HeadNorms& norms);

// The same by ATen operations in fp32, on any device.
at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor plain_add_round(const at::Tensor& residual,
                           const at::Tensor& update,
                           at::ScalarType stream);
at::Tensor plain_swiglu(const at::Tensor& gate_up);
Qkv plain_split_heads(const at::Tensor& qkv,
                      std::int64_t num_heads,
                      std::int64_t num_kv_heads,
                      const at::Tensor& cos,
                      const at::Tensor& sin,
                      const HeadNorms& norms);

}  // namespace hedgerow::worker
