// What the operators' rules for tensors without data share. Such tensors (FakeTensor, meta) come
// from tracing; their sizes may be symbols, of which nothing may be asked but arithmetic. The
// operators give each result one memory layout, whatever backend computes it, because a rule must
// say it without knowing the backend. Included by the *_ops.cpp alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include "kernels/ops/attention_arguments.hpp"

namespace hedgerow::kernels::ops {

// Whether all sizes are numbers. Undefined tensors are skipped.
[[nodiscard]] bool sizes_are_known(at::ArrayRef<at::Tensor> tensors);

// The checks of hybrid_attention where sizes are known; the kernels check everything themselves. v
// may be undefined.
void check_known(const AttentionArguments& arguments,
                 const at::Tensor& q,
                 const at::Tensor& k,
                 const at::Tensor& v);

// x's [B, H, T, D] as all outputs of attention lie: [B, T, H, D] in memory.
[[nodiscard]] at::Tensor in_rows(const at::Tensor& x);
[[nodiscard]] at::Tensor empty_in_rows(const at::Tensor& x, at::ScalarType dtype);

// A new tensor of such sizes like x.
[[nodiscard]] at::Tensor empty_of(const at::Tensor& x,
                                  c10::SymIntArrayRef sizes,
                                  at::ScalarType dtype);

// What stands for a result that is not wanted or not there: an operator returns no undefined ones.
[[nodiscard]] at::Tensor absent(const at::Tensor& like);

// Columns that a map gives: of head_dim without a layer.
[[nodiscard]] c10::SymInt num_features(const std::optional<at::Tensor>& layer,
                                       const FeatureMapOptions& options,
                                       const c10::SymInt& head_dim);

}  // namespace hedgerow::kernels::ops
