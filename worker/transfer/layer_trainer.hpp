// Attention transfer of one layer: its feature maps and window factors learn to give the teacher's
// attention output (LoLCATs, arXiv 2410.10254 eq. 7). A layer is a problem of its own: objective,
// optimizer, clip, schedule, stop and best copy are its alone, so that the block it happens to lie
// in cannot change its result.
//
// Everything a resumed layer needs goes through save() and restore(). One thread.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/hybrid_attention.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "worker/model/layer/rotary.hpp"
#include "worker/optim/adamw.hpp"
#include "worker/optim/schedule.hpp"
#include "worker/transfer/attention_rows.hpp"

namespace hedgerow::worker {

// What is recorded of a layer at a validation.
struct LayerMetrics {
  int layer = 0;
  std::int64_t step = 0;
  double mse = 0.0;
  double relative_mse =
      0.0;  // MSE / mean square of the teacher's output: comparable between layers
  double cross_entropy = 0.0;  // with xent_factor only
  double linear_share = 0.0;   // mean over heads of the weight that the linear branch carries
  // The weight of the window, but for the sinks, and of the sinks: means over heads and at most 64
  // queries of the first validation sequence (attention_rows.hpp), while linear_share is of all.
  double window_share = 0.0, sink_share = 0.0;  // 0: from a checkpoint of an earlier build
  double window_factor = 0.0;                   // mean over heads of sigmoid(window_factors)
  double gradient_norm = 0.0;                   // of the last step, before the clip
  double learning_rate = 0.0;
  // MSE of the window and sinks alone on the same sequences (kernels::window_attention), the same
  // at every validation; 0: without a window, or from a checkpoint of an earlier build.
  double control_mse = 0.0;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE_WITH_DEFAULT(LayerMetrics,
                                              layer,
                                              step,
                                              mse,
                                              relative_mse,
                                              cross_entropy,
                                              linear_share,
                                              window_share,
                                              sink_share,
                                              window_factor,
                                              gradient_norm,
                                              learning_rate,
                                              control_mse)
};

class LayerTrainer {
 public:
  // Starts the maps from (seed, layer_idx): phi_k as a copy of phi_q, of a kv head that of the
  // first query head that it serves. `student`: whose layer it is, in a checkpoint's names; "" is
  // the recipe's own.
  LayerTrainer(int layer_idx,
               const storage::Recipe& recipe,
               const storage::ModelConfig& config,
               std::uint64_t seed,
               const at::Device& device,
               const std::string& student = {});

  // One forward's share of a step: `share` x (mse_factor MSE + xent_factor cross-entropy), backward
  // at once. q, k and v without autograd -> the teacher's output [B, H, T, D], which is `y_true` if
  // another trainer of the layer has given it. Throws kCorrupt if it is not finite, kInternal if
  // the loss is not.
  at::Tensor accumulate(const Qkv& qkv, double share, const at::Tensor& y_true = {});
  // Clip and update, then draw the maps again where the recipe's redraw_every says so; throws
  // kInternal naming the layer if the gradient is not finite.
  void step();

  // A validation is any number of validate() calls, then finish_validation(), which feeds schedule,
  // stopper and best copy.
  void validate(const Qkv& qkv, const at::Tensor& y_true);
  const LayerMetrics& finish_validation(std::int64_t step);

  [[nodiscard]] int layer_idx() const noexcept { return layer_idx_; }
  // What a step has taken in this process, without the teacher if it was given; 0: no step yet.
  [[nodiscard]] double seconds_per_step() const noexcept {
    return steps_ == 0 ? 0.0 : seconds_ / static_cast<double>(steps_);
  }
  [[nodiscard]] const kernels::HybridParameters& parameters() const noexcept { return parameters_; }
  [[nodiscard]] const kernels::HybridOptions& options() const noexcept { return options_; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  [[nodiscard]] const std::vector<LayerMetrics>& history() const noexcept { return history_; }
  [[nodiscard]] const LayerMetrics& best_metrics() const;
  // What is reported of the layer once it is trained: the metrics of what export_best() writes, and
  // "stopped_early". Where the best validation is worse than the control: "trained_mse", what it
  // had, and "kept_untrained", whether the control is exported in its place (false: the maps cannot
  // express it).
  [[nodiscard]] nlohmann::json result() const;
  // What the exported parameters attend to beside the teacher, on one sequence (qkv [1, ...]): a
  // map a head (attention_rows.hpp), with "layer" and "step", that of the best validation.
  [[nodiscard]] std::vector<nlohmann::json> attention_maps(const Qkv& qkv) const;

  // "layers.3." + parameter, exp_avg, exp_avg_sq and best copy into `tensors`; the rest into the
  // returned object.
  nlohmann::json save(std::map<std::string, storage::OwnedTensor>& tensors) const;
  // Throws kCorrupt if a tensor is missing or has another shape.
  void restore(const std::map<std::string, storage::OwnedTensor>& tensors,
               const nlohmann::json& state);
  // The best copy under LoLCATs' names of the global layer index, fp32; with its linear branch off
  // where the layer is kept untrained.
  void export_best(std::map<std::string, storage::OwnedTensor>& tensors) const;

 private:
  struct Sums {
    double squared_error = 0.0, energy = 0.0, cross_entropy = 0.0, linear_share = 0.0;
    double control_squared_error = 0.0;
    AttentionShares shares;  // of the first sequence
    std::int64_t elements = 0, sequences = 0;
  };
  void create_parameters(const storage::ModelConfig& config, const at::Device& device);
  // The control's MSE was not measured yet, and there is a control.
  [[nodiscard]] bool needs_control() const;
  [[nodiscard]] bool is_behind_control() const;
  // What export_best() writes, and whether it is kept untrained.
  [[nodiscard]] std::pair<std::map<std::string, at::Tensor>, bool> exported() const;
  // Omega of both maps becomes draw number `draw`; the start is number 0.
  void redraw(std::uint32_t draw);
  // Throws kCorrupt if it is the teacher's output that is not finite, kInternal (training diverged)
  // otherwise.
  [[noreturn]] void fail_not_finite(const std::string& what, const at::Tensor& y_true) const;
  [[nodiscard]] std::string prefix() const {
    return student_ + "layers." + std::to_string(layer_idx_) + ".";
  }

  int layer_idx_;
  std::string student_;  // "" or with a dot behind it
  double seconds_ = 0.0;  // of `steps_` steps
  std::int64_t steps_ = 0;
  storage::TransferSection transfer_;
  RateSettings rates_;
  storage::AttentionSpec attention_;
  std::uint64_t seed_;
  kernels::HybridOptions options_;
  kernels::HybridParameters parameters_;
  std::vector<std::string> names_;   // "feature_map_q.mlp.layer", ... in the order of tensors_
  std::vector<at::Tensor> tensors_;  // the leaves
  std::vector<at::Tensor> best_;     // their values at the best validation
  std::optional<AdamW> optimizer_;
  double learning_rate_;
  double gradient_norm_ = 0.0;
  Plateau plateau_;
  Stopper stopper_;
  bool stopped_ = false;
  Sums sums_;
  double control_mse_ = 0.0;  // 0: not measured
  std::vector<LayerMetrics> history_;
};

}  // namespace hedgerow::worker
