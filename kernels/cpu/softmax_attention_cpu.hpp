// The teacher's attention on the CPU, one (batch, head) and 64 queries at a time against all their
// keys.
#pragma once

#include <ATen/core/Tensor.h>

namespace hedgerow::kernels::cpu {

at::Tensor softmax_attention_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace hedgerow::kernels::cpu
