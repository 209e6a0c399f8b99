// worker/device/host_copy.hpp on CUDA: pinned memory, and an event behind each copy to the host.
// Both directions go on the current stream, so a tensor's memory needs no second stream's consent
// to be used again. LibTorch's allocator of pinned memory notes the stream of every non-blocking
// copy_ from or to its blocks and gives a block to no other tensor before the copy is over: tensors
// of it may be let go as soon as the copy was begun.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/device/host_copy.hpp"

namespace hedgerow::worker {
namespace {

class CudaHostCopy final : public HostCopy {
 public:
  CudaHostCopy(at::Tensor host, const at::Device& device) : HostCopy(std::move(host)) {
    event_.record(c10::cuda::getCurrentCUDAStream(device.index()));
  }
  bool is_done() override { return event_.query(); }

 private:
  at::cuda::CUDAEvent event_;
};

class CudaHostCopier final : public HostCopier {
 public:
  explicit CudaHostCopier(const at::Device& device) : device_(device) {}

  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) override {
    const c10::cuda::CUDAGuard guard(device_);
    return at::empty(sizes, at::TensorOptions(dtype).pinned_memory(true));
  }
  std::unique_ptr<HostCopy> begin(const at::Tensor& tensor) override {
    const c10::cuda::CUDAGuard guard(device_);
    // Equal layout and dtype: the copy is one cudaMemcpyAsync.
    const at::Tensor source = tensor.contiguous();
    at::Tensor host = empty(source.sizes(), source.scalar_type());
    host.copy_(source, /*non_blocking=*/true);
    return std::make_unique<CudaHostCopy>(std::move(host), device_);
  }
  at::Tensor to_device(const at::Tensor& host) override {
    return host.to(device_, /*non_blocking=*/true);
  }

 private:
  at::Device device_;
};

}  // namespace

std::unique_ptr<HostCopier> make_cuda_host_copier(const at::Device& device) {
  return device.is_cuda() ? std::make_unique<CudaHostCopier>(device) : nullptr;
}

}  // namespace hedgerow::worker
