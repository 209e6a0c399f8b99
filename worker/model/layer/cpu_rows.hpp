// The CPU forms of norm.hpp, rotary.hpp, mlp.hpp and frozen_product.hpp: contiguous tensors of one
// dtype, bf16 or fp32, vectorised for the processor at hand. Used by those files alone.
#pragma once

#include "worker/model/layer/mlp.hpp"
#include "worker/model/layer/rotary.hpp"

namespace hedgerow::worker::cpu {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
Normed add_rms_norm(const at::Tensor& residual,
                    const at::Tensor& update,
                    const at::Tensor& weight,
                    double eps);
at::Tensor add_round(const at::Tensor& residual, const at::Tensor& update, at::ScalarType stream);
void add_scaled(const at::Tensor& y, std::int64_t first, const at::Tensor& update, double scale);
at::Tensor rms_norm_backward(const at::Tensor& residual_gradient,
                             const at::Tensor& output_gradient,
                             const at::Tensor& low_rank,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             double eps);

at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up);

// Norms of each head alone.
Qkv split_heads(const at::Tensor& qkv,
                std::int64_t num_heads,
                std::int64_t num_kv_heads,
                const RopeTable& rope,
                const HeadNorms& norms);
at::Tensor split_heads_backward(const Qkv& gradient,
                                const at::Tensor& qkv,
                                const RopeTable& rope,
                                const HeadNorms& norms);

// A product of few rows, as decoding has them: bf16, limited by reading the matrix once. Whether
// this form takes it: x [..., in] of up to three rows, weight [out, in] contiguous, in a multiple
// of 32 and out of 4. Sums in fp32, in an order that neither the number of rows nor that of threads
// changes, rounded once; bias [out] or undefined.
[[nodiscard]] bool takes_few_rows(const at::Tensor& x, const at::Tensor& weight);
[[nodiscard]] at::Tensor few_rows_product(const at::Tensor& x,
                                          const at::Tensor& weight,
                                          const at::Tensor& bias);

}  // namespace hedgerow::worker::cpu
