// The teacher's attention in ATen operations, for any device. Called by softmax_attention.cpp,
// which checks.
#pragma once

#include <ATen/core/Tensor.h>

namespace hedgerow::kernels::aten {

// ATen's own fused backend of the device. No autograd.
at::Tensor softmax_attention_aten(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

struct SoftmaxGradients {
  at::Tensor q, k, v;  // in the inputs' dtypes; fp32 inside, rounded once
};
// By tiles of queries, in a fixed order: the backward of ATen's fused backends for CUDA adds
// atomically and gives other bytes from call to call. O(T^2) work, O(T) memory.
SoftmaxGradients softmax_backward_aten(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v,
                                       const at::Tensor& dy);

}  // namespace hedgerow::kernels::aten
