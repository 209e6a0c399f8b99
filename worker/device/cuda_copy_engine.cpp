// worker/device/upload.hpp on CUDA.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <array>

#include "worker/device/upload.hpp"

namespace hedgerow::worker {
namespace {

class CudaCopyEngine final : public CopyEngine {
 public:
  explicit CudaCopyEngine(const at::Device& device)
      : device_(device), stream_(c10::cuda::getStreamFromPool(false, device.index())) {}

  std::shared_ptr<std::byte[]> host_buffer(std::size_t bytes) override {
    // A reader's thread has no device of its own; pinning would make a context on number 0.
    const c10::cuda::CUDAGuard guard(device_);
    const at::Tensor pinned = at::empty({static_cast<std::int64_t>(bytes)},
                                        at::TensorOptions(at::kByte).pinned_memory(true));
    auto* begin = static_cast<std::byte*>(pinned.data_ptr());
    return {begin, [pinned](std::byte*) {}};
  }

  // Raw bytes: ATen's copy would not know that memory behind from_blob is pinned. The tensor is
  // made under the copy stream, so that its memory is none that the computing stream still uses.
  at::Tensor begin_copy(const at::Tensor& host, int slot) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    at::Tensor on_device = at::empty(host.sizes(), host.options().device(device_));
    C10_CUDA_CHECK(cudaMemcpyAsync(on_device.mutable_data_ptr(),
                                   host.const_data_ptr(),
                                   host.nbytes(),
                                   cudaMemcpyHostToDevice,
                                   stream_));
    event(slot).record(stream_);
    return on_device;
  }

  void let_compute_wait(const at::Tensor& on_device, int slot) override {
    const c10::cuda::CUDAStream computing = c10::cuda::getCurrentCUDAStream(device_.index());
    event(slot).block(computing);
    // Not given to another copy before what is computed on it is over.
    c10::cuda::CUDACachingAllocator::recordStream(on_device.storage().data_ptr(), computing);
  }

  void wait(int slot) override { event(slot).synchronize(); }

 private:
  at::cuda::CUDAEvent& event(int slot) { return events_.at(static_cast<std::size_t>(slot)); }

  at::Device device_;
  c10::cuda::CUDAStream stream_;
  std::array<at::cuda::CUDAEvent, kNumSlots> events_;
};

}  // namespace

std::unique_ptr<CopyEngine> make_copy_engine(const at::Device& device) {
  return device.is_cuda() ? std::make_unique<CudaCopyEngine>(device) : nullptr;
}

}  // namespace hedgerow::worker
