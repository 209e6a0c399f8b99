// The hybrid's attention weights with T x T tensors and ATen's own autograd: the definition that
// the fused backends are tested against. For tests and for this folder's own references; nothing
// else calls it.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels {

struct HybridWeights {
  at::Tensor window;       // p_ij [B, H, T, T], 0 outside window, sinks and cache
  at::Tensor linear;       // l_ij [B, H, T, T], 0 inside them and above the diagonal
  at::Tensor denominator;  // Z_i [B, H, T, 1]
};

// fp32, fp64 for fp64 input; k's heads are repeated. v, which only a cache's choices read, may be
// undefined.
HybridWeights hybrid_weights_reference(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v,
                                       const HybridParameters& parameters,
                                       const HybridOptions& options);

}  // namespace hedgerow::kernels
