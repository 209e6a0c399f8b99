// AdamW (arXiv 1711.05101) over a few small fp32 tensors, with torch's defaults and torch's
// formula, and the gradient clip that goes with it. State is plain tensors, so that a checkpoint
// holds all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace hedgerow::worker {

struct AdamWOptions {
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

// What gradients of this joint norm are multiplied by so that it is at most max_norm (0: no limit).
[[nodiscard]] double clip_factor(double norm, double max_norm);

class AdamW {
 public:
  // Leaves that require gradients, in an order that never changes: it is the order of the clip's
  // sum.
  explicit AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options = {});

  // Scales all gradients so that their joint norm is at most max_norm (0: no limit). Returns the
  // norm before, which is not finite if any gradient is not. A parameter without a gradient counts
  // as zero.
  double clip_gradients(double max_norm);
  // One update from the gradients, which are then dropped.
  void step(double learning_rate);

  [[nodiscard]] std::int64_t num_steps() const noexcept { return num_steps_; }
  void set_num_steps(std::int64_t num_steps) noexcept { num_steps_ = num_steps; }
  // In the order of the parameters; the caller may copy into them (resume).
  [[nodiscard]] const std::vector<at::Tensor>& exp_avg() const noexcept { return exp_avg_; }
  [[nodiscard]] const std::vector<at::Tensor>& exp_avg_sq() const noexcept { return exp_avg_sq_; }

 private:
  std::vector<at::Tensor> parameters_, exp_avg_, exp_avg_sq_;
  AdamWOptions options_;
  std::int64_t num_steps_ = 0;
};

}  // namespace hedgerow::worker
