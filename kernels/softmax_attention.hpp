// The teacher's attention: causal softmax(q k^T / sqrt(D)) v (LoLCATs eq. 1). One kernel for
// capture, transfer and evaluation, so that block inputs equal the full forward bit for bit at
// equal shapes. No T x T tensor. Wrong shapes, dtypes and devices throw c10::Error naming the
// argument, what was expected and what was found. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/backend.hpp"

namespace hedgerow::kernels {

// q [B, H, T, D], k and v [B, G, T, D], one dtype (bf16 or fp32), G divides H -> [B, H, T, D] of
// that dtype. Scores and sums in fp32. No autograd. Deterministic at a fixed thread count.
at::Tensor softmax_attention(const at::Tensor& q,
                             const at::Tensor& k,
                             const at::Tensor& v,
                             Backend backend = Backend::kAuto);

// The same of a batch, a sequence at a time: products are not invariant to the batch, and a
// sequence is to get the same bits whatever batch it comes in.
at::Tensor softmax_attention_by_sequence(const at::Tensor& q,
                                         const at::Tensor& k,
                                         const at::Tensor& v,
                                         Backend backend = Backend::kAuto);

// The same with autograd, for kept softmax layers in the finetune stage.
at::Tensor softmax_attention_trainable(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v,
                                       Backend backend = Backend::kAuto);

// Quadratic reference in q's dtype (tests): materialises T x T.
at::Tensor softmax_attention_reference(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v);

}  // namespace hedgerow::kernels
