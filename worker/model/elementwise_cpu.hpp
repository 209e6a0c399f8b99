// The CPU forms of elementwise.hpp: contiguous bf16 or fp32 input, vectorised for the processor at
// hand. Used by elementwise.cpp alone.
#pragma once

#include "worker/model/elementwise.hpp"

namespace hedgerow::worker::cpu {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
Normed add_rms_norm(const at::Tensor& residual,
                    const at::Tensor& update,
                    const at::Tensor& weight,
                    double eps);
at::Tensor add_round(const at::Tensor& residual, const at::Tensor& update, at::ScalarType stream);
at::Tensor swiglu(const at::Tensor& gate_up);
Qkv split_heads(const at::Tensor& qkv,
                std::int64_t num_heads,
                std::int64_t num_kv_heads,
                const at::Tensor& cos,
                const at::Tensor& sin,
                const HeadNorms& norms);

}  // namespace hedgerow::worker::cpu
