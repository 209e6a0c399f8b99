// A step of the same shapes again and again as one CUDA graph: of a decode step the host's launches
// take longer than the GPU needs for it. cuda_step_graph.cpp in builds with CUDA.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace hedgerow::worker {

class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Launches what was recorded, on the current stream: it reads and writes the tensors that it was
  // recorded with, where they lie. Waits for nothing.
  virtual void replay() = 0;
};

// Records what `body` launches; nothing of it runs. Everything that it would load or allocate for
// the first time must have run before; it must neither wait for the device nor copy from the host.
// Tensors that it makes stay the graph's. Null where `device` has no graphs. Throws c10::Error.
[[nodiscard]] std::unique_ptr<StepGraph> record_step(const at::Device& device,
                                                     const std::function<void()>& body);

}  // namespace hedgerow::worker
