// The backends of an operation, its last argument. Each operation has one in ATen operations, which
// runs wherever ATen does, and in fp64 too. All but window_attention have one fused for the CPU,
// and all but transfer_mse one fused for CUDA, for what its kernels take. Results are the same
// bytes from call to call on one device.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "kernels/options/attention_options.hpp"

namespace hedgerow::kernels {

// kAuto, what everything but tests and benches asks for: the fused backend of the first tensor's
// device where it takes the problem, else kAten; fp64 as the operation's contract says. A backend
// by name computes the problem itself, fp64 in kAten without the reference, or the operation throws
// c10::Error saying why it does not take the tensors.
enum class Backend { kAuto, kCpu, kCuda, kAten };

// The backend of a device where no CUDA kernel takes the problem.
[[nodiscard]] inline Backend backend_for(const at::Tensor& x) {
  return x.is_cpu() ? Backend::kCpu : Backend::kAten;
}

// Which backend computes a problem whose first tensor is x; never kAuto. why_not_cuda says in words
// why no CUDA kernel takes the problem, empty where one does; it is asked where the answer counts.
// Throws c10::Error, `what` first, where `asked` does not take the problem.
[[nodiscard]] Backend choose_backend(const char* what,
                                     Backend asked,
                                     const at::Tensor& x,
                                     const std::function<std::string()>& why_not_cuda);

// choose_backend() of the hybrid. The CPU's tiles and the CUDA kernels compute only maps that are
// activations; kAuto takes kAten for the others, and kCpu by name is refused.
[[nodiscard]] Backend choose_hybrid_backend(const char* what,
                                            Backend asked,
                                            const at::Tensor& x,
                                            const FeatureMapOptions& map,
                                            const std::function<std::string()>& why_not_cuda);

}  // namespace hedgerow::kernels
