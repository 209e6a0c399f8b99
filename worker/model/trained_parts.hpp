// What a finetune can train besides LoRA: the student's feature maps and window factors, and the
// model's norms, each under its name in feature_maps.safetensors or in the model directory. On disk
// they are trained_parameters.safetensors beside the adapter, fp32, where there are any; the loader
// of the adapter puts them in place of the student's and the teacher's own.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/model/student.hpp"
#include "worker/model/weights.hpp"

namespace hedgerow::worker {

struct TrainedPart {
  std::string name;
  std::string group;  // as finetune.trainable spells it: "maps", "window_factors", "norms"
  std::vector<std::int64_t> shape;  // on disk; of the window factors [1, H, 1, 1]
  at::Tensor* value;                // fp32, in the object that the part was asked of
  int layer_idx = -1;               // -1: outside the layers
};

// In a fixed order; what a layer lacks is left out. The object outlives the parts and stays where
// it is.
[[nodiscard]] std::vector<TrainedPart> parts_of(kernels::HybridParameters& parameters,
                                                int layer_idx);
[[nodiscard]] std::vector<TrainedPart> parts_of(LayerWeights& layer,
                                                const storage::ModelConfig& config,
                                                int layer_idx);
[[nodiscard]] std::vector<TrainedPart> parts_of(OuterWeights& outer);

using TrainedTensors = std::map<std::string, at::Tensor>;  // by name, fp32

// The tensors of an adapter's directory; empty: it has no such file. What belongs to a layer that
// `has`, if it is given, does not name is left out. Throws kCorrupt naming a norm that `config`
// lacks or that has another shape; maps are checked by put_in_place(Student&).
[[nodiscard]] TrainedTensors load_trained(const std::filesystem::path& directory,
                                          const storage::ModelConfig& config,
                                          const std::function<bool(int layer_idx)>& has = {});
void save_trained(const std::filesystem::path& directory, const TrainedTensors& tensors);

// New tensors on the old ones' device, in place of those that have a name in `tensors`.
void put_in_place(const std::vector<TrainedPart>& parts, const TrainedTensors& tensors);
// Throws kCorrupt naming a map or window factor that the student lacks or that has another shape.
void put_in_place(Student& student, const TrainedTensors& tensors);

}  // namespace hedgerow::worker
