// The hybrid in ATen operations, for any device: chunked, in batched matrix products over all
// chunks of all heads, O(T (2W + F) D). Sums, states and products in fp32 (fp64 for fp64 input);
// inputs are widened. Deterministic, and never waits for the device. Called by
// hybrid_attention.cpp, which checks and owns autograd.
#pragma once

#include "kernels/aten/chunks_aten.hpp"
#include "kernels/problem/hybrid_problem.hpp"

namespace hedgerow::kernels::aten {

// part_elements: what a temporary may hold (chunks_aten.hpp); tests give less.
HybridForward hybrid_forward_aten(const HybridProblem& problem,
                                  bool keep_for_backward,
                                  std::int64_t part_elements = kPartElements);
HybridGradients hybrid_backward_aten(const HybridProblem& problem,
                                     const HybridForward& forward,
                                     const at::Tensor& dy,
                                     const HybridNeeds& needs,
                                     std::int64_t part_elements = kPartElements);

}  // namespace hedgerow::kernels::aten
