// In what order a pipeline's stages compute a step: 1F1B, and interleaved 1F1B where a stage has
// several ranges of layers (Narayanan et al., arXiv 2104.04473). Every rank makes the same order
// from the same numbers and follows its own list; the plan tells with it how long a step takes and
// how long stages wait (the bubble).
#pragma once

#include <cstdint>
#include <vector>

#include "storage/shape/mesh.hpp"

namespace hedgerow::storage {

struct PipelineOperation {
  bool is_forward = true;
  int chunk = 0;        // which of the stage's ranges of layers
  int micro_batch = 0;  // of this pipeline
  bool operator==(const PipelineOperation&) const = default;
};

// Operations of each stage, in order. The micro-batches of a range go forward, and backward, in
// theirs.
using PipelineOrder = std::vector<std::vector<PipelineOperation>>;

// The order of one pipeline of the mesh. Backward passes go first, since they give memory back:
// with one range a stage never holds more than pipeline - stage micro-batches. Without `trains`,
// forward passes alone (a validation).
[[nodiscard]] PipelineOrder pipeline_order(const Mesh& mesh, int num_micro_batches, bool trains);

// Forward passes of a stage's ranges whose backward passes are to come, at most.
[[nodiscard]] int most_in_flight(const std::vector<PipelineOperation>& operations);

// Seconds, or any other unit, of one micro-batch.
struct RangeCost {
  double forward = 1.0, backward = 2.0;
};
struct PipelineTimes {
  double makespan = 0.0;
  double idle = 0.0;  // the bubble: the share of makespan x stages in which a stage waits
};
// `costs` of each range; `message`: from the end of a pass until the next stage can begin with it.
[[nodiscard]] PipelineTimes pipeline_times(const PipelineOrder& order,
                                           const Mesh& mesh,
                                           const std::vector<RangeCost>& costs,
                                           double message = 0.0);

}  // namespace hedgerow::storage
