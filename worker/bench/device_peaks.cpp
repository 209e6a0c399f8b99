#include "worker/bench/device_peaks.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "worker/bench/alternate.hpp"

namespace hedgerow::worker::bench {
namespace {

constexpr int kRepeats = 3;

double product_flops(std::int64_t n, at::ScalarType dtype, const at::Device& device) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
  const at::Tensor a = at::randn({n, n}, options), b = at::randn({n, n}, options);
  at::Tensor out = at::empty({n, n}, options);
  const std::vector<Contender> only = {{[&] { at::mm_out(out, a, b); }}};
  const double size = static_cast<double>(n);
  return 2 * size * size * size / (alternate(only, kRepeats, device)[0].median_ms * 1e-3);
}

double best_product(at::ScalarType dtype, const at::Device& device) {
  const std::vector<std::int64_t> sizes = device.is_cpu()
                                              ? std::vector<std::int64_t>{512, 1024, 2048}
                                              : std::vector<std::int64_t>{4096, 8192};
  double best = 0;
  for (const std::int64_t n : sizes) best = std::max(best, product_flops(n, dtype, device));
  return best;
}

double copy_rate(const at::Device& device) {
  const std::int64_t bytes = std::int64_t{device.is_cpu() ? 256 : 1024} << 20;
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor from = at::ones({bytes / 4}, options);
  at::Tensor to = at::empty_like(from);
  const std::vector<Contender> only = {{[&] { to.copy_(from); }}};
  return 2 * static_cast<double>(bytes) / (alternate(only, kRepeats, device)[0].median_ms * 1e-3);
}

}  // namespace

double DevicePeaks::flops(measure::BenchDtype dtype) const {
  return dtype == measure::BenchDtype::kFloat32 ? fp32_flops : std::max(bf16_flops, fp32_flops);
}

DevicePeaks measure_peaks(const at::Device& device) {
  const c10::NoGradGuard no_grad;
  return {.copy_bytes_per_second = copy_rate(device),
          .bf16_flops = best_product(at::kBFloat16, device),
          .fp32_flops = best_product(at::kFloat, device)};
}

}  // namespace hedgerow::worker::bench
