#include "tests/support/other_device.hpp"
#include "worker/device/cuda_device.hpp"

namespace hedgerow::tests {

std::string why_no_other_device() {
  if (!worker::cuda::is_built()) return "this build has no CUDA";
  return worker::cuda::num_devices() == 0 ? "no GPU is visible" : "";
}

at::Device other_device() { return worker::cuda::use_device(0); }

}  // namespace hedgerow::tests
