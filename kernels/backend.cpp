#include "kernels/backend.hpp"

#include <ATen/ATen.h>

namespace hedgerow::kernels {

Backend choose_backend(const char* what,
                       Backend asked,
                       const at::Tensor& x,
                       const std::function<std::string()>& why_not_cuda) {
  if (asked == Backend::kAuto) {
    return x.is_cuda() && why_not_cuda().empty() ? Backend::kCuda : backend_for(x);
  }
  if (asked == Backend::kCuda) {
    const std::string reason = why_not_cuda();
    TORCH_CHECK(reason.empty(), what, ": ", reason);
  }
  TORCH_CHECK(asked != Backend::kCpu || (x.is_cpu() && x.scalar_type() != at::kDouble),
              what,
              ": the CPU backend takes float32 and bfloat16 on the CPU, found ",
              x.scalar_type(),
              " on ",
              x.device());
  return asked;
}

Backend choose_hybrid_backend(const char* what,
                              Backend asked,
                              const at::Tensor& x,
                              const FeatureMapOptions& map,
                              const std::function<std::string()>& why_not_cuda) {
  if (!map.row().is_activation()) {
    if (asked == Backend::kAuto && x.is_cpu()) return Backend::kAten;
    TORCH_CHECK(asked != Backend::kCpu,
                what,
                ": the CPU backend has no positive random and no Taylor features; the ATen backend "
                "does");
  }
  return choose_backend(what, asked, x, why_not_cuda);
}

}  // namespace hedgerow::kernels
