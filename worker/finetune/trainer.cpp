#include "worker/finetune/trainer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"
#include "storage/shape/budgets.hpp"
#include "storage/shape/layer_shape.hpp"
#include "worker/device/cuda_device.hpp"
#include "worker/model/decoder.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

int micro_batches(const storage::FinetuneSection& finetune) {
  if (finetune.sequences_per_micro_batch < 1 ||
      finetune.sequences_per_step % finetune.sequences_per_micro_batch != 0) {
    throw Error(ErrorKind::kUsage,
                "finetune.sequences_per_step = " + std::to_string(finetune.sequences_per_step) +
                    " is not a multiple of finetune.sequences_per_micro_batch = " +
                    std::to_string(finetune.sequences_per_micro_batch));
  }
  return finetune.sequences_per_step / finetune.sequences_per_micro_batch;
}

LossWeights loss_weights(const storage::FinetuneSection& finetune) {
  if (finetune.objective == "ce") return {1.0, 0.0};
  if (finetune.objective == "kl") return {0.0, 1.0};
  return {finetune.ce_weight, finetune.kl_weight};
}

std::vector<StudentLayer> make_layers(
    const StudentModel& model,
    const HeldLayers& held,
    std::vector<std::optional<kernels::HybridParameters>> parameters,
    const std::function<LayerWeights(int)>& load,
    std::int64_t rows) {
  std::vector<StudentLayer> layers;
  layers.reserve(held.layers.size());
  for (const int layer : held.layers) {
    layers.emplace_back(
        model, load(layer), std::move(parameters[static_cast<std::size_t>(layer)]), rows);
  }
  return layers;
}

// Without targets where LoRA is not trained.
LoraAdapter start_of(const storage::ModelConfig& config,
                     const HeldLayers& held,
                     const TrainerOptions& options) {
  storage::FinetuneSection finetune = options.finetune;
  if (!finetune.trains("lora")) finetune.target_modules.clear();
  return start_adapter(config, finetune, options.seed, [&](int layer) { return held.has(layer); });
}

const storage::Mesh& fitting(const storage::Mesh& mesh, const Communicator& communicator) {
  if (mesh.ranks() == communicator.world_size()) return mesh;
  throw Error(ErrorKind::kUsage,
              "finetune.mesh = \"" + storage::mesh_text(mesh) + "\" has " +
                  std::to_string(mesh.ranks()) + " ranks, but " +
                  std::to_string(communicator.world_size()) +
                  " were started; make them equal, or set it to \"auto\"");
}

// Ranks of the mesh that have the same data index, or the same stage.
std::vector<int> ranks_of_pipeline(const storage::Mesh& mesh, int rank) {
  std::vector<int> ranks;
  for (int stage = 0; stage < mesh.pipeline; ++stage)
    ranks.push_back(mesh.rank(mesh.data_index(rank), stage));
  return ranks;
}
std::vector<int> ranks_of_stage(const storage::Mesh& mesh, int rank) {
  std::vector<int> ranks;
  for (int index = 0; index < mesh.data; ++index)
    ranks.push_back(mesh.rank(index, mesh.stage(rank)));
  return ranks;
}

// Each of several ranks on one GPU has its share of it. Collective.
std::int64_t activation_budget(const at::Device& device, Communicator& communicator) {
  const bool on_gpu = device.is_cuda();
  struct Place {
    std::array<char, 64> host{};
    std::uint64_t slot = 0;
  };
  Place own{.slot = on_gpu ? cuda::slot(device) : 0};
  wire::this_host().copy(own.host.data(), own.host.size() - 1);
  const std::vector<std::byte> all = communicator.all_gather(std::as_bytes(std::span(&own, 1)));
  if (!on_gpu) return storage::kHostActivationBytes;
  std::int64_t ranks = 0;
  for (std::size_t at = 0; at < all.size(); at += sizeof(Place))
    ranks += std::memcmp(&all[at], &own, sizeof(Place)) == 0 ? 1 : 0;
  const cuda::Memory memory = cuda::memory(device);
  const auto free = static_cast<std::int64_t>(memory.free + memory.reserved - memory.allocated);
  return storage::gpu_activation_bytes(static_cast<std::int64_t>(memory.total) / ranks,
                                       free / ranks);
}

}  // namespace

HeldLayers::HeldLayers(const storage::ModelConfig& config, const storage::Mesh& mesh, int rank)
    : ranges(storage::ranges_of_stage(storage::split_layers(config, mesh), mesh, mesh.stage(rank))),
      has_embedding(mesh.stage(rank) == 0),
      has_head(mesh.stage(rank) == mesh.pipeline - 1) {
  for (const storage::LayerRange& range : ranges) {
    for (int layer = range.begin; layer < range.end; ++layer) layers.push_back(layer);
  }
}

bool HeldLayers::has(int layer_idx) const { return std::ranges::binary_search(layers, layer_idx); }

FinetuneTrainer::FinetuneTrainer(const storage::ModelConfig& config,
                                 Student student,
                                 OuterWeights outer,
                                 const std::function<LayerWeights(int)>& load,
                                 const storage::TokenSequences& tokens,
                                 TrainerOptions options,
                                 Communicator& communicator)
    : options_(std::move(options)),
      communicator_(communicator),
      held_(config, fitting(options_.mesh, communicator), communicator.rank()),
      model_{{config, make_rope_table(config, tokens.seq_len, device()), options_.stream},
             student.options.in_training()},
      outer_(std::move(outer)),
      tokens_(tokens),
      order_(options_.seed, num_train(), options_.finetune.sequences_per_step),
      stages_(make_group(communicator, ranks_of_pipeline(options_.mesh, communicator.rank()))),
      replicas_(make_group(communicator, ranks_of_stage(options_.mesh, communicator.rank()))),
      exchange_(make_tensor_exchange(
          *replicas_, device(), options_.finetune.exchange, communicator.rank() == 0)),
      reducer_(*replicas_, *exchange_, micro_batches(options_.finetune)),
      layers_(make_layers(
          model_,
          held_,
          std::move(student.layers),
          [&](int layer) {
            LayerWeights weights = load(layer);
            compute_ = weights.qkv.weight().scalar_type();
            return weights;
          },
          options_.finetune.sequences_per_micro_batch * tokens.seq_len)),
      parameters_(start_of(config, held_, options_),
                  parts_to_train(),
                  device(),
                  options_.finetune.weight_decay) {
  if (held_.has_head) head_.emplace(config, outer_, loss_weights(options_.finetune));
  outer_.lm_head = at::Tensor();  // the head has what it needs of it
  pipeline_ = std::make_unique<Pipeline>(
      options_.mesh,
      *stages_,
      StreamShape{{options_.finetune.sequences_per_micro_batch, tokens.seq_len, config.hidden_size},
                  options_.stream,
                  compute_,
                  device()});
  const int in_flight = storage::most_in_flight(
      storage::pipeline_order(options_.mesh, reducer_.num_own_leaves(), true)
          .at(static_cast<std::size_t>(stages_->rank())));
  const std::int64_t budget = options_.activation_budget_bytes
                                  ? *options_.activation_budget_bytes
                                  : activation_budget(device(), communicator_);
  keeps_activations_ =
      storage::keeps_activations(activation_bytes(), in_flight, options_.mesh.chunks, budget);
}

std::vector<TrainedPart> FinetuneTrainer::parts_to_train() {
  std::vector<TrainedPart> chosen;
  const auto choose = [&](const std::vector<TrainedPart>& parts) {
    for (const TrainedPart& part : parts) {
      if (options_.finetune.trains(part.group)) chosen.push_back(part);
    }
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) choose(layers_[i].parts(held_.layers[i]));
  if (held_.has_head) choose(parts_of(outer_));
  return chosen;
}

std::int64_t FinetuneTrainer::activation_bytes() const {
  const LoraAdapter& lora = parameters_.adapter();
  const std::int64_t of_token =
      storage::kept_activation_bytes(model_.layers.config,
                                     static_cast<std::int64_t>(c10::elementSize(compute_)),
                                     lora.target_modules,
                                     lora.rank);
  const std::int64_t rows = options_.finetune.sequences_per_micro_batch * tokens_.seq_len;
  return std::ssize(held_.layers) * rows * of_token;
}

at::Tensor FinetuneTrainer::embedded(std::span<const std::int64_t> sequences) const {
  std::vector<std::int64_t> ids;
  for (const auto sequence : sequences) {
    const auto row = tokens_.sequence(sequence);
    ids.insert(ids.end(), row.begin(), row.end());
  }
  const at::Tensor input_ids =
      at::tensor(ids, at::kLong)
          .view({static_cast<std::int64_t>(sequences.size()), tokens_.seq_len});
  // Else the host waits here for all that it launched, and the pipeline's messages with it. CUDA
  // has read memory that is not pinned when the call returns.
  return round_to_stream(embed(input_ids.to(device(), /*non_blocking=*/true), outer_.embed_tokens),
                         options_.stream);
}

std::int64_t FinetuneTrainer::num_train() const {
  return options_.sequences ? options_.sequences->num_train : tokens_.num_train;
}

std::int64_t FinetuneTrainer::num_validation() const {
  return options_.sequences ? options_.sequences->num_validation : tokens_.num_validation();
}

std::int64_t FinetuneTrainer::first_validation() const {
  return options_.sequences ? options_.sequences->validation_begin : tokens_.num_train;
}

Targets FinetuneTrainer::targets(std::span<const std::int64_t> sequences) const {
  Targets targets = targets_of(tokens_, sequences);
  if (!options_.teacher) return targets;
  add_teacher(targets, std::ssize(sequences), tokens_.seq_len, [&](std::int64_t i) {
    const std::int64_t sequence = sequences[static_cast<std::size_t>(i)];
    const std::int64_t past = sequence - first_validation();
    return options_.teacher(past < 0 ? sequence : num_train() + past);
  });
  return targets;
}

FinetuneTrainer::MicroBatch FinetuneTrainer::begin(std::span<const std::int64_t> sequences,
                                                   double scale,
                                                   const at::Tensor& gradient) const {
  if (gradient.defined()) parameters_.zero_part_gradients(gradient);
  return {sequences,
          scale,
          gradient,
          0.0,
          std::vector<at::Tensor>(layers_.size()),
          std::vector<LayerActivations>(keeps_activations_ ? layers_.size() : 0)};
}

void FinetuneTrainer::after_layer() const {
  pipeline_->progress();
  options_.check_cancelled();
}

at::Tensor FinetuneTrainer::forward(int chunk, MicroBatch& batch, at::Tensor hidden) const {
  parameters_.collect_part_gradients(batch.gradient);
  const storage::LayerRange& range = held_.ranges[static_cast<std::size_t>(chunk)];
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int layer = held_.layers[i];
    if (!range.contains(layer)) continue;
    const bool trains = batch.gradient.defined();
    if (trains) batch.inputs[i] = hidden;
    hidden = layers_[i].forward(hidden,
                                parameters_.adapter().of_layer(layer),
                                trains && keeps_activations_ ? &batch.kept[i] : nullptr);
    after_layer();
  }
  return hidden;
}

at::Tensor FinetuneTrainer::backward(int chunk, MicroBatch& batch, at::Tensor gradient) {
  parameters_.collect_part_gradients(batch.gradient);
  const LoraAdapter gradients = parameters_.views_of(batch.gradient);
  const storage::LayerRange& range = held_.ranges[static_cast<std::size_t>(chunk)];
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const int layer = held_.layers[i];
    if (!range.contains(layer)) continue;
    const LayerLora lora = parameters_.adapter().of_layer(layer);
    LayerActivations activations =
        keeps_activations_ ? std::move(batch.kept[i]) : layers_[i].recompute(batch.inputs[i], lora);
    gradient = layers_[i].backward(
        gradient, batch.inputs[i], activations, lora, gradients.of_layer(layer), layer > 0);
    batch.inputs[i] = at::Tensor();
    after_layer();
  }
  return gradient;
}

at::Tensor FinetuneTrainer::compute_loss(MicroBatch& batch, const at::Tensor& hidden) const {
  LossHead::Result result =
      head_->run(hidden, targets(batch.sequences), batch.scale, true, [this] { after_layer(); });
  batch.loss_sum = result.loss_sum;
  return std::move(result.gradient);
}

double FinetuneTrainer::accumulate(std::span<const std::int64_t> sequences,
                                   double scale,
                                   const at::Tensor& gradient) {
  const at::NoGradGuard no_gradients;
  MicroBatch batch = begin(sequences, scale, gradient);
  pipeline_->run(
      1,
      true,
      {.embed = [&](int) { return embedded(sequences); },
       .forward = [&](int chunk, int, const at::Tensor& h) { return forward(chunk, batch, h); },
       .compute_loss = [&](int, const at::Tensor& h) { return compute_loss(batch, h); },
       .backward = [&](int chunk, int, const at::Tensor& g) { return backward(chunk, batch, g); }});
  parameters_.collect_part_gradients({});
  return batch.loss_sum;
}

void FinetuneTrainer::run_step(const std::vector<std::int64_t>& sequences, double scale) {
  const at::NoGradGuard no_gradients;
  const auto per_leaf = static_cast<std::size_t>(options_.finetune.sequences_per_micro_batch);
  const std::int64_t size = parameters_.size();
  std::map<int, MicroBatch> batches;  // in flight
  std::map<int, at::Tensor> leaves;
  const auto sequences_of = [&](int micro_batch) {
    const auto first = static_cast<std::size_t>(reducer_.first_leaf() + micro_batch) * per_leaf;
    return std::span(sequences).subspan(first, per_leaf);
  };
  const auto forward_of = [&](int chunk, int micro_batch, const at::Tensor& hidden) {
    if (chunk == 0) {
      // The loss travels as one more leaf value.
      leaves[micro_batch] = at::empty({size + 1}, at::TensorOptions(at::kFloat).device(device()));
      batches[micro_batch] =
          begin(sequences_of(micro_batch), scale, leaves[micro_batch].narrow(0, 0, size));
    }
    return forward(chunk, batches.at(micro_batch), hidden);
  };
  const auto backward_of = [&](int chunk, int micro_batch, const at::Tensor& gradient) {
    const auto batch = batches.find(micro_batch);
    at::Tensor flowing = backward(chunk, batch->second, gradient);
    if (chunk > 0) return flowing;
    const auto leaf = leaves.find(micro_batch);
    leaf->second.narrow(0, size, 1).fill_(batch->second.loss_sum);
    reducer_.add(leaf->second);
    batches.erase(batch);
    leaves.erase(leaf);
    return flowing;
  };
  pipeline_->run(
      reducer_.num_own_leaves(),
      true,
      {.embed = [&](int i) { return embedded(sequences_of(i)); },
       .forward = forward_of,
       .compute_loss = [&](int i, const at::Tensor& h) { return compute_loss(batches.at(i), h); },
       .backward = backward_of});
  parameters_.collect_part_gradients({});
}

void FinetuneTrainer::sum_over_stages(std::vector<double>& values) {
  const auto all = stages_->all_gather(std::as_bytes(std::span(values)));
  const auto* of_stage = reinterpret_cast<const double*>(all.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    double sum = 0.0;
    for (int stage = 0; stage < stages_->world_size(); ++stage)
      sum += of_stage[static_cast<std::size_t>(stage) * values.size() + i];
    values[i] = sum;
  }
}

std::chrono::milliseconds FinetuneTrainer::patience() const {
  return options_.mesh.pipeline == 1 ? std::chrono::milliseconds(0) : next_patience_;
}

FinetuneTrainer::StepResult FinetuneTrainer::step() {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto since = [&](std::chrono::steady_clock::time_point begin) {
    return std::chrono::ceil<std::chrono::milliseconds>(now() - begin);
  };
  const auto sequences = order_.step(parameters_.num_steps());
  const std::int64_t counted = count_targets(tokens_, sequences);
  const double scale = counted == 0 ? 0.0 : 1.0 / static_cast<double>(counted);
  const std::int64_t size = parameters_.size();
  const DeadlineScope waiting(communicator_, communicator_.deadline() + patience());
  const double waited_before = pipeline_->seconds_waited();
  const std::int64_t sent_before = pipeline_->bytes_sent();
  const auto begin = now();
  run_step(sequences, scale);
  // Ranks with a micro-batch less are ready before the others by its time, which is then no sign
  // that a peer is lost.
  const DeadlineScope for_others(
      communicator_,
      communicator_.deadline() + (reducer_.has_unequal_shares()
                                      ? since(begin) / reducer_.num_own_leaves()
                                      : std::chrono::milliseconds(0)));
  const at::Tensor sum = reducer_.finish().to(device());
  std::vector<double> sums = {
      held_.has_head ? static_cast<double>(sum[size].item<float>()) : 0.0,
      pipeline_->seconds_waited() - waited_before,
      static_cast<double>(pipeline_->bytes_sent() - sent_before)};
  sum_over_stages(sums);
  StepResult result;
  result.loss = sums[0] * scale;
  result.idle_seconds = sums[1] / options_.mesh.pipeline;
  result.bytes_between_stages = static_cast<std::int64_t>(sums[2]);
  result.tokens = options_.finetune.sequences_per_step * tokens_.seq_len;
  const auto& finetune = options_.finetune;
  result.norms = parameters_.step(sum.narrow(0, 0, size),
                                  {finetune.learning_rate, finetune.gradient_clip},
                                  [this](std::vector<double>& values) { sum_over_stages(values); });
  next_patience_ = 2 * since(begin);
  return result;
}

Validation FinetuneTrainer::validate() {
  const at::NoGradGuard no_gradients;
  const std::int64_t per_batch = options_.finetune.sequences_per_micro_batch;
  const std::int64_t batches = (num_validation() + per_batch - 1) / per_batch;
  const std::int64_t end = first_validation() + num_validation();
  const auto sequences_of = [&](std::int64_t batch) {
    std::vector<std::int64_t> real;
    const std::int64_t first = first_validation() + batch * per_batch;
    for (std::int64_t i = first; i < std::min(first + per_batch, end); ++i) real.push_back(i);
    return real;
  };
  std::int64_t counted = 0;
  for (std::int64_t batch = 0; batch < batches; ++batch)
    counted += count_targets(tokens_, sequences_of(batch));
  if (counted == 0) return {};
  // Pipelines take turns.
  const std::int64_t pipelines = options_.mesh.data;
  const std::int64_t own = replicas_->rank();
  std::vector<Validation> sums(static_cast<std::size_t>(batches));
  const DeadlineScope waiting(communicator_, communicator_.deadline() + patience());
  MicroBatch batch = begin({}, 1.0, {});
  const auto embed = [&](int i) {
    // One shape for every product: a short last batch repeats its last sequence, whose rows are
    // then not counted.
    std::vector<std::int64_t> padded = sequences_of(own + i * pipelines);
    padded.resize(static_cast<std::size_t>(per_batch), padded.back());
    return embedded(padded);
  };
  const auto loss_of_batch = [&](int i, const at::Tensor& hidden) {
    const std::int64_t index = own + i * pipelines;
    const LossHead::Result result =
        head_->run(hidden, targets(sequences_of(index)), 1.0, false, [this] { after_layer(); });
    sums[static_cast<std::size_t>(index)] = {result.loss_sum, result.ce_sum, result.kl_sum};
    return at::Tensor();
  };
  pipeline_->run(
      static_cast<int>((batches - own + pipelines - 1) / pipelines),
      false,
      {.embed = embed,
       .forward = [&](int chunk, int, const at::Tensor& h) { return forward(chunk, batch, h); },
       .compute_loss = loss_of_batch,
       .backward = {}});
  const auto all = communicator_.all_gather(std::as_bytes(std::span(sums)));
  Validation mean;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto owner = static_cast<std::size_t>(
        options_.mesh.rank(static_cast<int>(i) % options_.mesh.data, options_.mesh.pipeline - 1));
    const auto& sum = reinterpret_cast<const Validation*>(all.data())[owner * sums.size() + i];
    mean.loss += sum.loss;
    mean.cross_entropy += sum.cross_entropy;
    mean.kl += sum.kl;
  }
  for (double* value : {&mean.loss, &mean.cross_entropy, &mean.kl})
    *value /= static_cast<double>(counted);
  return mean;
}

}  // namespace hedgerow::worker
