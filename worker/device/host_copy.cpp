#include "worker/device/host_copy.hpp"

#include <ATen/ATen.h>

namespace hedgerow::worker {
namespace {

class PlainCopy final : public HostCopy {
 public:
  using HostCopy::HostCopy;
  bool is_done() override { return true; }
};

class PlainCopier final : public HostCopier {
 public:
  explicit PlainCopier(const at::Device& device) : device_(device) {}

  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return at::empty(sizes, at::TensorOptions(dtype));
  }
  std::unique_ptr<HostCopy> begin(const at::Tensor& tensor) override {
    return std::make_unique<PlainCopy>(tensor.to(at::kCPU).contiguous());
  }
  at::Tensor to_device(const at::Tensor& host) override { return host.to(device_); }

 private:
  at::Device device_;
};

}  // namespace

std::unique_ptr<HostCopier> make_host_copier(const at::Device& device) {
  if (auto copier = make_cuda_host_copier(device)) return copier;
  return std::make_unique<PlainCopier>(device);
}

}  // namespace hedgerow::worker
