// Tensors between a device and host memory, where messages are sent from and received into, without
// the host waiting for the device: it launches what comes next while a copy waits for its turn.
// CUDA's is in worker/device/cuda_host_copy.cpp; tests have one that copies late. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

namespace hedgerow::worker {

// A copy to the host that was begun. May be dropped at any time, its memory too.
class HostCopy {
 public:
  explicit HostCopy(at::Tensor host) : host_(std::move(host)) {}
  virtual ~HostCopy() = default;
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  // Contiguous, on the CPU. Its values may be read once is_done() has been true.
  [[nodiscard]] const at::Tensor& host() const { return host_; }
  // Returns at once. Throws c10::Error where the device is lost.
  virtual bool is_done() = 0;

 private:
  at::Tensor host_;
};

class HostCopier {
 public:
  virtual ~HostCopier() = default;
  // Host memory that copies need no detour from: [sizes], not initialised.
  virtual at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
  // Of what the current stream's work so far leaves in the device's tensor; the work that follows
  // may write to it. Copies are done in the order in which they were begun. Where the tensor lies
  // on the CPU already, nothing is copied: host() is its own memory, which stays as it is until the
  // caller has no more use for it.
  virtual std::unique_ptr<HostCopy> begin(const at::Tensor& tensor) = 0;
  // On the device, for what the current stream is given from now on; returns at once. `host` is of
  // empty(), has its values, and may be let go, but not be written to any more. On the CPU: itself.
  virtual at::Tensor to_device(const at::Tensor& host) = 0;
};

// For any device. Of one that is neither the CPU nor a CUDA device, begin() waits for the copy.
[[nodiscard]] std::unique_ptr<HostCopier> make_host_copier(const at::Device& device);
// Null where `device` is no CUDA device, and in builds without CUDA.
[[nodiscard]] std::unique_ptr<HostCopier> make_cuda_host_copier(const at::Device& device);

}  // namespace hedgerow::worker
