#include "kernels/hybrid_attention.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "kernels/reference.hpp"

namespace hedgerow::kernels {

std::int64_t window_begin(WindowLayout layout, std::int64_t window_size, std::int64_t query) {
  switch (layout) {
    case WindowLayout::kNone:
      return query + 1;
    case WindowLayout::kSliding:
      return std::max<std::int64_t>(0, query - window_size + 1);
    case WindowLayout::kTerraced:
      return std::max<std::int64_t>(0, (query / window_size - 1) * window_size);
  }
  TORCH_CHECK(false, "attention: unknown window layout ", static_cast<int>(layout));
}

at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options) {
  return hybrid_attention_reference(q, k, v, parameters, options);
}

at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options) {
  const c10::NoGradGuard no_grad;
  const HybridWeights weights = hybrid_weights_reference(q, k, parameters, options);
  return (weights.linear.sum(-1, true) / weights.denominator).mean({0, 2, 3});
}

}  // namespace hedgerow::kernels
