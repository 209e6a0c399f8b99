// The finetune stage without its files: a student in memory, of which LoRA on its projections,
// maps, window factors and norms (finetune.trainable) are trained in steps that all ranks take
// together. A step's gradient is the mean over the positions that count in the whole step, summed
// over micro-batches in the order of one fixed tree (worker/comm/tree_reduce.hpp); every rank then
// makes the same update. So the parameters are a function of (seed, data, recipe, threads a rank),
// never of the number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "storage/recipe/capture_plan.hpp"
#include "storage/recipe/recipe.hpp"
#include "worker/comm/tensor_exchange.hpp"
#include "worker/comm/tree_reduce.hpp"
#include "worker/finetune/data_order.hpp"
#include "worker/finetune/layer_pass.hpp"
#include "worker/finetune/loss_head.hpp"
#include "worker/finetune/trained_parameters.hpp"
#include "worker/model/student.hpp"

namespace hedgerow::worker {

// Activations of all layers of a micro-batch are kept up to this size; beyond it each layer is made
// again from its input in the backward pass, for a third more work.
inline constexpr std::int64_t kActivationBudgetBytes = std::int64_t{1} << 30;

struct TrainerOptions {
  storage::FinetuneSection finetune;
  std::uint64_t seed = 0;
  at::ScalarType stream = at::kBFloat16;  // the residual stream is rounded to it after every layer
  std::int64_t activation_budget_bytes = kActivationBudgetBytes;
  // Where the objective needs the teacher: its logits [T, K] of a sequence, and the sequences that
  // have any, in whose numbering they are. Steps and validation are then of those sequences alone.
  std::function<TopLogits(std::int64_t)> teacher = {};
  std::optional<storage::CapturePlan> sequences = std::nullopt;
  // Called on the computing thread after each layer of each pass and in the loss: it is
  // check_cancelled. What it throws ends the step, whose update is then not made.
  std::function<void()> check_cancelled = [] {};
};

// Means over the positions of the validation sequences that count.
struct Validation {
  double loss = 0.0;           // what the steps lower
  double cross_entropy = 0.0;  // nats
  double kl = 0.0;             // from the teacher, nats; 0 without its logits
};

class FinetuneTrainer {
 public:
  // Collective, as is the destructor (tensor_exchange.hpp). `load(i)` gives the weights of layer i,
  // once each, in order. tokens and communicator outlive the trainer. Throws kUsage when ranks or
  // sequences do not fit (tree_reduce.hpp, data_order.hpp, micro-batches), and as
  // make_tensor_exchange.
  FinetuneTrainer(const storage::ModelConfig& config,
                  Student student,
                  OuterWeights outer,
                  const std::function<LayerWeights(int)>& load,
                  const storage::TokenSequences& tokens,
                  TrainerOptions options,
                  Communicator& communicator);
  FinetuneTrainer(const FinetuneTrainer&) = delete;
  FinetuneTrainer& operator=(const FinetuneTrainer&) = delete;

  struct StepResult {
    double loss = 0.0;  // mean over the step's positions that count, before the update
    TrainedParameters::StepNorms norms;
    std::int64_t tokens = 0;  // of all ranks
  };
  // Collective. The next step after parameters().num_steps().
  StepResult step();
  // Of the steps to come; before the first call it is finetune.learning_rate.
  void set_learning_rate(double learning_rate) { options_.finetune.learning_rate = learning_rate; }
  // Collective. Over the validation sequences; zeros when there are none.
  Validation validate();

  [[nodiscard]] TrainedParameters& parameters() { return parameters_; }
  // The loss sum of one micro-batch; its gradient times `scale` goes to `gradient`
  // [parameters().size()] fp32, on the layers' device.
  double accumulate(std::span<const std::int64_t> sequences,
                    double scale,
                    const at::Tensor& gradient);

 private:
  [[nodiscard]] at::Device device() const { return outer_.embed_tokens.device(); }
  [[nodiscard]] at::Tensor embedded(std::span<const std::int64_t> sequences) const;
  [[nodiscard]] std::int64_t activation_bytes() const;
  [[nodiscard]] std::int64_t num_train() const;
  // Sequences of the tokens file.
  [[nodiscard]] std::int64_t num_validation() const;
  [[nodiscard]] std::int64_t first_validation() const;
  // With the teacher's logits where the objective needs them.
  [[nodiscard]] Targets targets(std::span<const std::int64_t> sequences) const;
  [[nodiscard]] std::vector<TrainedPart> parts_to_train();

  StudentModel model_;
  OuterWeights outer_;
  const storage::TokenSequences& tokens_;
  TrainerOptions options_;
  Communicator& communicator_;
  DataOrder order_;
  std::unique_ptr<TensorExchange> exchange_;
  TreeReducer reducer_;
  std::vector<StudentLayer> layers_;
  // Makes what it trains of layers_ and outer_ its own, before head_ takes the final norm.
  TrainedParameters parameters_;
  LossHead head_;
  bool keeps_activations_ = false;
};

}  // namespace hedgerow::worker
