#include "kernels/window_attention.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include "kernels/backend.hpp"
#include "kernels/checks.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"

namespace hedgerow::kernels {

at::Tensor window_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridOptions& options) {
  RECORD_USER_SCOPE("hedgerow::window_attention");
  const cuda::HybridBackend* fused = q.is_cuda() ? cuda::hybrid_backend() : nullptr;
  if (fused == nullptr || options.layout == WindowLayout::kNone ||
      !fused->why_not_window(q).empty()) {
    return aten::window_attention(q, k, v, options);
  }
  check_attention(q, k, v);
  check_window(options);
  const c10::NoGradGuard no_grad;
  return fused->window(q, k, v, options);
}

}  // namespace hedgerow::kernels
