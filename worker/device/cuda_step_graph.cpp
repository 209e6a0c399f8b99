// worker/device/step_graph.hpp on CUDA.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/device/step_graph.hpp"

namespace hedgerow::worker {
namespace {

class CudaStepGraph final : public StepGraph {
 public:
  CudaStepGraph(const at::Device& device, const std::function<void()>& body) {
    const c10::cuda::CUDAGuard guard(device);
    c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
    // The default stream cannot be recorded.
    const c10::cuda::CUDAStreamGuard stream(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
    graph_.capture_begin();
    try {
      body();
    } catch (...) {
      graph_.capture_end();
      throw;
    }
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<StepGraph> record_step(const at::Device& device,
                                       const std::function<void()>& body) {
  return device.is_cuda() ? std::make_unique<CudaStepGraph>(device, body) : nullptr;
}

}  // namespace hedgerow::worker
