// The trained parameters of the finetune stage: all LoRA matrices as one flat fp32 vector in a
// fixed order (layer; q, k, v, o; A, B), with Adam's moments beside it, on the CPU; layers read a
// copy on their device. Every rank holds and updates all of it from the same gradient bytes, so all
// ranks stay equal without a message. On disk they are keyed by PEFT's parameter names, so that any
// mesh loads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "storage/tensors/checkpoint.hpp"
#include "worker/model/lora.hpp"
#include "worker/optim/adamw.hpp"

namespace hedgerow::worker {

class LoraParameters {
 public:
  LoraParameters(const LoraAdapter& start, const at::Device& device, double weight_decay);

  [[nodiscard]] std::int64_t size() const { return values_.numel(); }
  // Views of the device's copy: updated in place by step() and restore().
  [[nodiscard]] const LoraAdapter& adapter() const { return adapter_; }
  // The same layout over another flat vector [size()], for gradients.
  [[nodiscard]] LoraAdapter views_of(const at::Tensor& flat) const;

  struct StepOptions {
    double learning_rate = 1e-4;
    double gradient_clip = 1.0;  // global norm over all parameters; 0: none
  };
  // One AdamW update from a gradient [size()] fp32 on the CPU, which the clip may scale; returns
  // its norm before the clip. Throws kCorrupt when the gradient is not finite: the update would
  // destroy the parameters.
  double step(const at::Tensor& gradient, const StepOptions& options);
  [[nodiscard]] std::int64_t num_steps() const { return optimizer_->num_steps(); }

  // Remembers the values as the best so far.
  void keep_best() { best_ = values_.clone(); }
  // On the CPU: the values of the last keep_best(), the present ones before the first.
  [[nodiscard]] LoraAdapter best_adapter() const {
    return views_of(best_.defined() ? best_ : values_);
  }

  // Values and moments by name: "<PEFT name>", "<PEFT name>.exp_avg", "<PEFT name>.exp_avg_sq", and
  // "<PEFT name>.best" once there is a best; state: "step".
  [[nodiscard]] storage::Checkpoint checkpoint() const;
  // Throws kCorrupt naming a missing, surplus or misshaped tensor.
  void restore(const storage::Checkpoint& checkpoint);

 private:
  void update_device_values();

  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;
  };

  at::Tensor values_;         // [size()] fp32, on the CPU
  at::Tensor best_;           // [size()] fp32, on the CPU; undefined before keep_best()
  at::Tensor device_values_;  // values_ itself where the layers are on the CPU
  std::optional<AdamW> optimizer_;
  std::vector<Entry> entries_;
  LoraAdapter adapter_;
};

}  // namespace hedgerow::worker
