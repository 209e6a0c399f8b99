// Builds without CUDA: no device is ever found, so the rest is never called.
#include "storage/base/error.hpp"
#include "worker/device/cuda_device.hpp"
#include "worker/device/host_copy.hpp"
#include "worker/device/step_graph.hpp"
#include "worker/device/upload.hpp"

namespace hedgerow::worker::cuda {
namespace {

[[noreturn]] void fail() {
  throw storage::Error(storage::ErrorKind::kInternal, "a CUDA device in a build without CUDA");
}

}  // namespace

bool is_built() { return false; }
int num_devices() { return 0; }
std::string why_no_device() { return "this build has no CUDA"; }
std::string why_unusable(const at::Device& /*device*/) { fail(); }
at::Device use_device(int /*index*/) { fail(); }
at::Device current_device() { fail(); }
std::string model(const at::Device& /*device*/) { fail(); }
std::uint64_t memory_bytes(const at::Device& /*device*/) { fail(); }
Memory memory(const at::Device& /*device*/) { fail(); }
std::uint64_t slot(const at::Device& /*device*/) { fail(); }
Peaks peaks(const at::Device& /*device*/) { fail(); }
void reset_peaks(const at::Device& /*device*/) { fail(); }
void release_reserve() { fail(); }

}  // namespace hedgerow::worker::cuda

namespace hedgerow::worker {

std::unique_ptr<CopyEngine> make_copy_engine(const at::Device& /*device*/) { return nullptr; }

std::unique_ptr<HostCopier> make_cuda_host_copier(const at::Device& /*device*/) { return nullptr; }

std::unique_ptr<StepGraph> record_step(const at::Device& /*device*/,
                                       const std::function<void()>& /*body*/) {
  return nullptr;
}

}  // namespace hedgerow::worker
