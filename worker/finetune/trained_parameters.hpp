// The trained parameters of the finetune stage as one flat fp32 vector in a fixed order (LoRA by
// layer; q, k, v, o, gate, up, down; A, B; then maps, window factors and norms by layer), with
// Adam's moments beside it, on the layers' device; layers read views of it. A rank holds those of
// its layers; ranks with the same layers update them from the same gradient bytes, so they stay
// equal without a message. Norms over all parameters are sums over layers, in their order,
// whichever rank holds them. On disk they are keyed by name (PEFT's, the student's, Hugging
// Face's), so that any mesh loads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "storage/tensors/checkpoint.hpp"
#include "worker/model/lora.hpp"
#include "worker/model/trained_parts.hpp"
#include "worker/optim/adamw.hpp"

namespace hedgerow::worker {

class TrainedParameters {
 public:
  // `start` without targets: LoRA is not trained; its layers without modules lie on other ranks.
  // `parts` become views of the vector, which is why the objects that they lie in stay where
  // they are. Throws kUsage if there is nothing.
  TrainedParameters(const LoraAdapter& start,
                    const std::vector<TrainedPart>& parts,
                    const at::Device& device,
                    double weight_decay);

  [[nodiscard]] std::int64_t size() const { return values_.numel(); }
  // Views: updated in place by step() and restore().
  [[nodiscard]] const LoraAdapter& adapter() const { return adapter_; }
  // The same layout over another flat vector [size()], for gradients.
  [[nodiscard]] LoraAdapter views_of(const at::Tensor& flat) const;
  // From here on a backward pass adds the parts' gradients to `flat`: it is their .grad().
  // Undefined: nowhere.
  void collect_part_gradients(const at::Tensor& flat) const;
  // The parts' gradients in `flat` begin at zero; those of LoRA are written.
  void zero_part_gradients(const at::Tensor& flat) const;
  // Remembers the values as the best so far.
  void keep_best() { best_ = values_.clone(); }
  // On the CPU: the values of the last keep_best(), the present ones before the first. Parts have
  // the shapes that they have on disk.
  [[nodiscard]] TrainedTensors best_parts() const;

  struct StepOptions {
    double learning_rate = 1e-4;
    double gradient_clip = 1.0;  // global norm over all parameters; 0: none
  };
  struct StepNorms {
    double gradient = 0.0;                  // before the clip
    std::map<std::string, double> updates;  // of the change, by group: a module or a kind of part
  };
  // A number for each layer, group and factor, summed over the ranks that hold a part of the
  // layers.
  using SumOverStages = std::function<void(std::vector<double>& values)>;
  // One AdamW update from a gradient [size()] fp32, where the values are, which the clip may
  // scale. Collective over a pipeline's ranks where there is `sum`. Throws kCorrupt when the
  // gradient is not finite: the update would destroy the parameters.
  StepNorms step(const at::Tensor& gradient,
                 const StepOptions& options,
                 const SumOverStages& sum = {});
  [[nodiscard]] std::int64_t num_steps() const { return optimizer_->num_steps(); }
  // The norms of the steps' changes added up since step 0 (LoLCATs' figures 16 to 18), of a factor
  // of LoRA or of a layer's other parts of one kind: over all layers as {"q_proj/A": sum, "maps":
  // sum}, and a list of the same with "layer" (none for what lies outside the layers). The same on
  // each rank of a pipeline.
  [[nodiscard]] std::map<std::string, double> update_sums() const;
  [[nodiscard]] nlohmann::json update_sums_by_layer() const;

  // Values and moments by name: "<name>", "<name>.exp_avg", "<name>.exp_avg_sq", and "<name>.best"
  // once there is a best; state: "step", "update_sums".
  [[nodiscard]] storage::Checkpoint checkpoint() const;
  // Restores this rank's layers. Throws kCorrupt naming a missing or misshaped tensor.
  void restore(const storage::Checkpoint& checkpoint);

 private:
  [[nodiscard]] at::Tensor best_values() const {
    return (best_.defined() ? best_ : values_).to(at::kCPU);
  }
  // Sums of a flat vector's squares for each layer (and, behind the last one, for what lies outside
  // the layers), by group and factor [layers + 1, groups, 2]; what has no factors is in the first.
  [[nodiscard]] std::vector<double> squares(const at::Tensor& flat) const;

  struct Entry {
    std::string name, group;
    std::vector<std::int64_t> shape;
    std::size_t slot;  // in squares()
    std::int64_t begin = 0;
  };

  at::Tensor values_;  // [size()] fp32, where the layers are
  at::Tensor best_;    // the same; undefined before keep_best()
  std::vector<double> update_sums_;  // as squares()
  std::optional<AdamW> optimizer_;
  std::vector<Entry> entries_;
  LoraAdapter adapter_;
  std::size_t num_layers_ = 0;        // of the model
  std::size_t num_lora_entries_ = 0;  // the rest is of parts_, in their order
  std::vector<at::Tensor> parts_;     // the objects' own tensors: views of values_
};

}  // namespace hedgerow::worker
