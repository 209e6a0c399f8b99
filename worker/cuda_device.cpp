#include "worker/cuda_device.hpp"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>

namespace hedgerow::worker::cuda {
namespace {

void make_deterministic() {
  // Read when cuBLAS makes its first handle.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
  // An operation without a deterministic form warns, so that it is found and replaced.
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace

bool is_built() { return true; }

int num_devices() { return c10::cuda::device_count(); }

at::Device use_device(int index) {
  make_deterministic();
  const auto device = static_cast<c10::DeviceIndex>(index);
  c10::cuda::set_device(device);
  return {at::kCUDA, device};
}

std::string model(const at::Device& device) {
  return at::cuda::getDeviceProperties(device.index())->name;
}

std::uint64_t memory_bytes(const at::Device& device) {
  return at::cuda::getDeviceProperties(device.index())->totalGlobalMem;
}

}  // namespace hedgerow::worker::cuda
