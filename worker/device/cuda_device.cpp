#include "worker/device/cuda_device.hpp"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

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

// Until then it has no devices, and every question about one throws.
bool allocator_is_initialized() { return c10::cuda::CUDACachingAllocator::get()->initialized(); }

// Sums over all pools.
struct Stats {
  c10::CachingAllocator::Stat allocated, reserved;
};
Stats stats(const at::Device& device) {
  if (!allocator_is_initialized()) return {};
  const auto found = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {found.allocated_bytes[kAll], found.reserved_bytes[kAll]};
}

std::uint64_t whole(std::int64_t bytes) { return static_cast<std::uint64_t>(bytes); }

}  // namespace

bool is_built() { return true; }

int num_devices() { return c10::cuda::device_count(); }

std::string why_no_device() {
  try {
    c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

at::Device use_device(int index) {
  make_deterministic();
  // The first CUDA tensor would do this; the allocator's counters are asked for before.
  at::globalContext().lazyInitDevice(at::kCUDA);
  const auto device = static_cast<c10::DeviceIndex>(index);
  c10::cuda::set_device(device);
  return {at::kCUDA, device};
}

std::string why_unusable(const at::Device& device) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t found = cudaDeviceSynchronize();
  return found == cudaSuccess ? "" : cudaGetErrorString(found);
}

at::Device current_device() { return {at::kCUDA, c10::cuda::current_device()}; }

std::string model(const at::Device& device) {
  return at::cuda::getDeviceProperties(device.index())->name;
}

std::uint64_t memory_bytes(const at::Device& device) {
  return at::cuda::getDeviceProperties(device.index())->totalGlobalMem;
}

Memory memory(const at::Device& device) {
  const c10::cuda::CUDAGuard guard(device);
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const Stats found = stats(device);
  return {.total = total,
          .free = free,
          .reserved = whole(found.reserved.current),
          .allocated = whole(found.allocated.current)};
}

std::uint64_t slot(const at::Device& device) {
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  constexpr int kByte = 8;
  return (static_cast<std::uint64_t>(properties->pciDomainID) << 2 * kByte) |
         (static_cast<std::uint64_t>(properties->pciBusID) << kByte) |
         static_cast<std::uint64_t>(properties->pciDeviceID);
}

Peaks peaks(const at::Device& device) {
  const Stats found = stats(device);
  return {.allocated = whole(found.allocated.peak), .reserved = whole(found.reserved.peak)};
}

void reset_peaks(const at::Device& device) {
  if (allocator_is_initialized()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
}

void release_reserve() { c10::cuda::CUDACachingAllocator::emptyCache(); }

}  // namespace hedgerow::worker::cuda
