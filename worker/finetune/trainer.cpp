#include "worker/finetune/trainer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>

#include "storage/base/error.hpp"

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
    std::vector<std::optional<kernels::HybridParameters>> parameters,
    const std::function<LayerWeights(int)>& load,
    std::int64_t rows) {
  std::vector<StudentLayer> layers;
  layers.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    layers.emplace_back(model, load(static_cast<int>(i)), std::move(parameters[i]), rows);
  return layers;
}

// Without targets where LoRA is not trained.
LoraAdapter start_of(const storage::ModelConfig& config, const TrainerOptions& options) {
  storage::FinetuneSection finetune = options.finetune;
  if (!finetune.trains("lora")) finetune.target_modules.clear();
  return start_adapter(config, finetune, options.seed);
}

}  // namespace

FinetuneTrainer::FinetuneTrainer(const storage::ModelConfig& config,
                                 Student student,
                                 OuterWeights outer,
                                 const std::function<LayerWeights(int)>& load,
                                 const storage::TokenSequences& tokens,
                                 TrainerOptions options,
                                 Communicator& communicator)
    : model_{config,
             student.options,
             make_rope_table(config, tokens.seq_len, outer.embed_tokens.device()),
             options.stream},
      outer_(std::move(outer)),
      tokens_(tokens),
      options_(std::move(options)),
      communicator_(communicator),
      order_(options_.seed, num_train(), options_.finetune.sequences_per_step),
      exchange_(make_tensor_exchange(communicator, device(), options_.finetune.exchange)),
      reducer_(communicator, *exchange_, micro_batches(options_.finetune)),
      layers_(make_layers(model_,
                          std::move(student.layers),
                          load,
                          options_.finetune.sequences_per_micro_batch * tokens.seq_len)),
      parameters_(
          start_of(config, options_), parts_to_train(), device(), options_.finetune.weight_decay),
      head_(config, outer_, loss_weights(options_.finetune)) {
  keeps_activations_ = activation_bytes() <= options_.activation_budget_bytes;
}

std::vector<TrainedPart> FinetuneTrainer::parts_to_train() {
  std::vector<TrainedPart> chosen;
  const auto choose = [&](const std::vector<TrainedPart>& parts) {
    for (const TrainedPart& part : parts) {
      if (options_.finetune.trains(part.group)) chosen.push_back(part);
    }
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) choose(layers_[i].parts(static_cast<int>(i)));
  choose(parts_of(outer_));
  return chosen;
}

// What LayerActivations holds, with the attention's graph counted as its inputs and output once
// more.
std::int64_t FinetuneTrainer::activation_bytes() const {
  const auto& config = model_.config;
  const std::int64_t element = outer_.embed_tokens.element_size();
  const std::int64_t query = std::int64_t{config.num_attention_heads} * config.head_dim;
  const std::int64_t key = std::int64_t{config.num_key_value_heads} * config.head_dim;
  const LoraAdapter& lora = parameters_.adapter();
  const bool has_mlp_lora =
      lora.find(0, "gate_proj") != nullptr || lora.find(0, "up_proj") != nullptr;
  const std::int64_t wide = config.hidden_size + query + 4 * lora.rank +
                            (has_mlp_lora ? config.hidden_size + 2 * lora.rank : 0);
  const std::int64_t narrow =
      4 * (query + key) + config.hidden_size + 2 * std::int64_t{config.intermediate_size};
  const std::int64_t rows = options_.finetune.sequences_per_micro_batch * tokens_.seq_len;
  return config.num_hidden_layers * rows * (4 * wide + element * narrow);
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
  return round_to_stream(embed(input_ids.to(device()), outer_.embed_tokens), options_.stream);
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

double FinetuneTrainer::accumulate(std::span<const std::int64_t> sequences,
                                   double scale,
                                   const at::Tensor& gradient) {
  const at::NoGradGuard no_gradients;
  const LoraAdapter& lora = parameters_.adapter();
  LoraAdapter gradients = parameters_.views_of(gradient);
  parameters_.collect_part_gradients(gradient);
  const std::size_t depth = layers_.size();
  std::vector<at::Tensor> inputs(depth);
  std::vector<LayerActivations> kept(keeps_activations_ ? depth : 0);
  at::Tensor hidden = embedded(sequences);
  for (std::size_t i = 0; i < depth; ++i) {
    inputs[i] = hidden;
    hidden = layers_[i].forward(
        hidden, lora, static_cast<int>(i), keeps_activations_ ? &kept[i] : nullptr);
    options_.check_cancelled();
  }
  LossHead::Result head =
      head_.run(hidden, targets(sequences), scale, true, options_.check_cancelled);
  at::Tensor flowing = std::move(head.gradient);
  for (std::size_t i = depth; i-- > 0;) {
    const int layer = static_cast<int>(i);
    LayerActivations activations =
        keeps_activations_ ? std::move(kept[i]) : layers_[i].recompute(inputs[i], lora, layer);
    flowing = layers_[i].backward(flowing, inputs[i], activations, lora, gradients, layer, i > 0);
    inputs[i] = at::Tensor();
    options_.check_cancelled();
  }
  parameters_.collect_part_gradients({});
  return head.loss_sum;
}

FinetuneTrainer::StepResult FinetuneTrainer::step() {
  const auto sequences = order_.step(parameters_.num_steps());
  const std::int64_t counted = count_targets(tokens_, sequences);
  const double scale = counted == 0 ? 0.0 : 1.0 / static_cast<double>(counted);
  const auto per_leaf = static_cast<std::size_t>(options_.finetune.sequences_per_micro_batch);
  const std::int64_t size = parameters_.size();
  std::chrono::milliseconds longest{0};  // a micro-batch
  for (int i = 0; i < reducer_.num_own_leaves(); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const auto first = static_cast<std::size_t>(reducer_.first_leaf() + i) * per_leaf;
    const at::Tensor leaf = at::empty({size + 1}, at::TensorOptions(at::kFloat).device(device()));
    // The loss travels as one more leaf value.
    leaf.narrow(0, size, 1)
        .fill_(accumulate(
            std::span(sequences).subspan(first, per_leaf), scale, leaf.narrow(0, 0, size)));
    reducer_.add(leaf);
    longest = std::max(
        longest,
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin));
  }
  // Ranks with a micro-batch less are ready before the others by its time, which is then no sign
  // that a peer is lost.
  const DeadlineScope patience(
      communicator_,
      communicator_.deadline() +
          (reducer_.has_unequal_shares() ? longest : std::chrono::milliseconds(0)));
  const at::Tensor sum = reducer_.finish().to(at::kCPU);  // the only copy from a device
  StepResult result;
  result.loss = static_cast<double>(sum.const_data_ptr<float>()[size]) * scale;
  result.tokens = options_.finetune.sequences_per_step * tokens_.seq_len;
  const auto& finetune = options_.finetune;
  result.norms =
      parameters_.step(sum.narrow(0, 0, size), {finetune.learning_rate, finetune.gradient_clip});
  return result;
}

Validation FinetuneTrainer::validate() {
  const at::NoGradGuard no_gradients;
  const std::int64_t per_batch = options_.finetune.sequences_per_micro_batch;
  const std::int64_t batches = (num_validation() + per_batch - 1) / per_batch;
  const std::int64_t end = first_validation() + num_validation();
  std::vector<Validation> sums(static_cast<std::size_t>(batches));
  std::int64_t counted = 0;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const std::int64_t first = first_validation() + batch * per_batch;
    std::vector<std::int64_t> real;
    for (std::int64_t i = first; i < std::min(first + per_batch, end); ++i) real.push_back(i);
    counted += count_targets(tokens_, real);
    if (batch % communicator_.world_size() != communicator_.rank()) continue;
    // One shape for every product: a short last batch repeats its last sequence, whose rows are
    // then not counted.
    std::vector<std::int64_t> padded = real;
    padded.resize(static_cast<std::size_t>(per_batch), real.back());
    at::Tensor hidden = embedded(padded);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      hidden = layers_[i].forward(hidden, parameters_.adapter(), static_cast<int>(i), nullptr);
      options_.check_cancelled();
    }
    const LossHead::Result head =
        head_.run(hidden, targets(real), 1.0, false, options_.check_cancelled);
    sums[static_cast<std::size_t>(batch)] = {head.loss_sum, head.ce_sum, head.kl_sum};
  }
  if (counted == 0) return {};
  const auto all = communicator_.all_gather(std::as_bytes(std::span(sums)));
  Validation mean;
  for (std::size_t batch = 0; batch < sums.size(); ++batch) {
    const std::size_t owner = batch % static_cast<std::size_t>(communicator_.world_size());
    const auto& sum = reinterpret_cast<const Validation*>(all.data())[owner * sums.size() + batch];
    mean.loss += sum.loss;
    mean.cross_entropy += sum.cross_entropy;
    mean.kl += sum.kl;
  }
  for (double* value : {&mean.loss, &mean.cross_entropy, &mean.kl})
    *value /= static_cast<double>(counted);
  return mean;
}

}  // namespace hedgerow::worker
