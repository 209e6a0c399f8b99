// The finetune stage without its files: a student in memory, of which LoRA on its projections,
// maps, window factors and norms (finetune.trainable) are trained in steps that all ranks take
// together. The ranks are a mesh: a rank holds the layers of its stage alone, and computes them for
// the micro-batches of its pipeline. A step's gradient is the mean over the positions that count in
// the whole step, summed over micro-batches in the order of one fixed tree
// (worker/comm/tree_reduce.hpp); every rank of a stage then makes the same update. So the
// parameters are a function of (seed, data, recipe, threads a rank), never of the mesh.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "storage/recipe/capture_plan.hpp"
#include "storage/recipe/recipe.hpp"
#include "storage/shape/mesh.hpp"
#include "worker/comm/tensor_exchange.hpp"
#include "worker/comm/tree_reduce.hpp"
#include "worker/finetune/data_order.hpp"
#include "worker/finetune/loss_head.hpp"
#include "worker/finetune/pipeline.hpp"
#include "worker/finetune/student_layer.hpp"
#include "worker/finetune/trained_parameters.hpp"
#include "worker/model/student.hpp"

namespace hedgerow::worker {

// What a rank of a mesh holds of a model.
struct HeldLayers {
  HeldLayers(const storage::ModelConfig& config, const storage::Mesh& mesh, int rank);

  std::vector<storage::LayerRange> ranges;  // of each chunk
  std::vector<int> layers;                  // of all of them, ascending
  bool has_embedding = false;               // the first stage
  bool has_head = false;                    // the last one: final norm and lm_head
  [[nodiscard]] bool has(int layer_idx) const;
};

struct TrainerOptions {
  storage::FinetuneSection finetune;
  storage::Mesh mesh{};  // of the communicator's ranks
  std::uint64_t seed = 0;
  at::Device device = at::kCPU;
  at::ScalarType stream = at::kBFloat16;  // the residual stream is rounded to it after every layer
  // Activations are kept up to this size (storage/shape/pipeline_order.hpp); absent: what the
  // device has for them once the layers are loaded.
  std::optional<std::int64_t> activation_budget_bytes = std::nullopt;
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
  // once each of this rank's, in order. `outer` has what HeldLayers says that the rank needs, on
  // options.device. tokens and communicator outlive the trainer. Throws kUsage when ranks, layers
  // or sequences do not fit (mesh.hpp, tree_reduce.hpp, data_order.hpp, micro-batches), and as
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
    // In a mesh with several stages: how long a stage of this pipeline waited for others' passes,
    // the mean over them, and what they sent each other.
    double idle_seconds = 0.0;
    std::int64_t bytes_between_stages = 0;
  };
  // Collective. The next step after parameters().num_steps().
  StepResult step();
  // The rate of the steps to come; before the first call it is finetune.learning_rate.
  void set_learning_rate(double learning_rate) { options_.finetune.learning_rate = learning_rate; }
  // Collective. Over the validation sequences; zeros when there are none.
  Validation validate();

  // The parameters of this rank's layers.
  [[nodiscard]] TrainedParameters& parameters() { return parameters_; }
  // The loss sum of one micro-batch; its gradient times `scale` goes to `gradient`
  // [parameters().size()] fp32, on the layers' device. Collective over a pipeline; its last stage
  // alone knows the loss, the others return 0.
  double accumulate(std::span<const std::int64_t> sequences,
                    double scale,
                    const at::Tensor& gradient);
  [[nodiscard]] const Pipeline& pipeline() const { return *pipeline_; }

 private:
  // One that this rank has begun and not ended.
  struct MicroBatch {
    std::span<const std::int64_t> sequences;
    double scale = 0.0;
    at::Tensor gradient;  // [parameters_.size()], a view of the leaf
    double loss_sum = 0.0;
    std::vector<at::Tensor> inputs;  // by own layer
    std::vector<LayerActivations> kept;
  };

  [[nodiscard]] at::Device device() const { return options_.device; }
  [[nodiscard]] MicroBatch begin(std::span<const std::int64_t> sequences,
                                 double scale,
                                 const at::Tensor& gradient) const;
  [[nodiscard]] at::Tensor forward(int chunk, MicroBatch& batch, at::Tensor hidden) const;
  [[nodiscard]] at::Tensor backward(int chunk, MicroBatch& batch, at::Tensor gradient);
  // The gradient of the loss in the last layer's output; the loss goes into `batch`.
  [[nodiscard]] at::Tensor compute_loss(MicroBatch& batch, const at::Tensor& hidden) const;
  // Serves the pipeline's messages and checks for a stop.
  void after_layer() const;
  // The pipeline's ranks' values added up; each is not zero on one of them alone.
  void sum_over_stages(std::vector<double>& values);
  void run_step(const std::vector<std::int64_t>& sequences, double scale);
  [[nodiscard]] at::Tensor embedded(std::span<const std::int64_t> sequences) const;
  [[nodiscard]] std::int64_t activation_bytes() const;
  [[nodiscard]] std::int64_t num_train() const;
  // Sequences of the tokens file.
  [[nodiscard]] std::int64_t num_validation() const;
  [[nodiscard]] std::int64_t first_validation() const;
  // With the teacher's logits where the objective needs them.
  [[nodiscard]] Targets targets(std::span<const std::int64_t> sequences) const;
  [[nodiscard]] std::vector<TrainedPart> parts_to_train();
  // Beyond the deadline: a rank of several stages waits for others' passes, up to two steps' time.
  [[nodiscard]] std::chrono::milliseconds patience() const;

  TrainerOptions options_;
  Communicator& communicator_;
  HeldLayers held_;
  StudentModel model_;
  OuterWeights outer_;
  const storage::TokenSequences& tokens_;
  DataOrder order_;
  std::unique_ptr<Communicator> stages_, replicas_;  // of the pipeline; of the stage
  std::unique_ptr<TensorExchange> exchange_;
  TreeReducer reducer_;                     // of the replicas
  at::ScalarType compute_ = at::kBFloat16;  // of the weights
  std::vector<StudentLayer> layers_;        // held_.layers
  // Makes what it trains of layers_ and outer_ its own, before head_ takes the final norm.
  TrainedParameters parameters_;
  std::optional<LossHead> head_;  // at the last stage
  std::unique_ptr<Pipeline> pipeline_;
  bool keeps_activations_ = false;
  std::chrono::milliseconds next_patience_ = kLoadDeadline;  // the first step's time is not known
};

}  // namespace hedgerow::worker
