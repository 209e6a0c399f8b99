#include "coordinator/plan/plan_costs.hpp"

#include <algorithm>
#include <cmath>

#include "storage/shape/layer_shape.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr double kFloat = 4.0;
// What a worker process takes beside its tensors: code, allocator, HDF5, read buffers. This and the
// factors without a source below are fitted to the peaks of runs of SmolLM2-135M, on two cores of
// an EPYC, 2026-11-25.
constexpr double kProcessBytes = 195e6;
// Assumed, no GPU having been at hand: CUDA's context with the kernels of LibTorch and ours on the
// GPU, and what their libraries take of the host.
constexpr double kGpuContextBytes = 1024.0 * 1024 * 1024;
constexpr double kGpuHostBytes = 3.0 * 1024 * 1024 * 1024;
// Assumed: NCCL's buffers and kernels on the GPU of a rank with others, 0.3 to 1 GB a communicator.
constexpr double kNcclBytes = 512.0 * 1024 * 1024;
// Operations of one logit in the cross-entropy: conversions, maximum, exponential, sum.
constexpr double kLogitFlops = 200.0;
// Rows of logits that the logits stage and an evaluation are planned with. Four times those that
// exist at a time: fitted to peaks of SmolLM2, it covers what is computed from them too.
constexpr double kLogitRows = 4.0 * storage::kLogitRows;

std::uint64_t whole(double bytes) { return static_cast<std::uint64_t>(bytes); }

double process_bytes(bool on_gpu) { return on_gpu ? kGpuContextBytes : kProcessBytes; }

double bytes_of(const std::string& dtype, int automatic) {
  if (dtype == "auto") return automatic;
  return dtype == "fp32" ? 4.0 : 2.0;
}

// Bytes of a position in a tokens file: its id and two flags.
constexpr double kTokenBytes = 6.0;

// Journal, history, status and report of a small run.
constexpr double kRecordBytes = 2e6;

double tokens_bytes(const PlanTokens& tokens) {
  double positions = 0.0;
  const auto add = [&positions](const TokensInfo& info) {
    positions += static_cast<double>(info.num_sequences * info.seq_len);
  };
  for (const TokensInfo* info : {&tokens.transfer, &tokens.finetune, &tokens.evaluate}) add(*info);
  for (const TokensInfo& text : tokens.texts) add(text);
  return kTokenBytes * positions;
}

}  // namespace

Costs::Costs(const storage::Recipe& recipe,
             const storage::ModelConfig& model,
             const PlanTokens& tokens,
             const PlanLimits& limits)
    : model_(model),
      attention_(recipe.attention),
      layers_(model.num_hidden_layers),
      hidden_(model.hidden_size),
      intermediate_(model.intermediate_size),
      vocabulary_(model.vocab_size),
      heads_(model.num_attention_heads),
      kv_heads_(model.num_key_value_heads),
      key_maps_(static_cast<double>(
          recipe.attention.num_key_maps(model.num_attention_heads, model.num_key_value_heads))),
      head_dim_(model.head_dim),
      features_(recipe.attention.feature_dim),
      window_(recipe.attention.window == storage::WindowLayout::kNone
                  ? 0
                  : recipe.attention.window_size),
      sinks_(recipe.attention.num_sinks),
      compute_bytes_(bytes_of(recipe.plan.compute_dtype, limits.compute_bytes)),
      shard_bytes_(bytes_of(recipe.plan.shard_dtype, 2)),
      transfer_tokens_(
          static_cast<double>(recipe.plan.sequences_per_forward * tokens.transfer.seq_len)),
      evaluate_tokens_(static_cast<double>(
          std::min<std::int64_t>(recipe.plan.sequences_per_forward,
                                 tokens.evaluated(recipe.evaluate.max_sequences)) *
          tokens.evaluate.seq_len)),
      evaluate_stream_bytes_(static_cast<double>(tokens.evaluate.seq_len) * hidden_ *
                             compute_bytes_),
      evaluate_sequences_(static_cast<double>(tokens.evaluated(recipe.evaluate.max_sequences))),
      tokens_bytes_(tokens_bytes(tokens)),
      finetune_tokens_(
          static_cast<double>(recipe.finetune.sequences_per_micro_batch * tokens.finetune.seq_len)),
      finetune_seq_len_(static_cast<double>(tokens.finetune.seq_len)),
      transfer_seq_len_(static_cast<double>(tokens.transfer.seq_len)),
      transfer_(recipe.transfer),
      finetune_(recipe.finetune),
      tied_(model.tie_word_embeddings),
      students_(1.0),
      evaluate_columns_(storage::kMostEvaluateColumns) {
  for (const storage::Variant& variant : recipe.variants) {
    // Each student's, and the window of its bytes, which seeds share.
    evaluate_columns_ += variant.seeds + 1;
    const auto maps = static_cast<double>(storage::map_parameters(variant.attention, model));
    students_ += variant.seeds * (map_parameters() > 0.0 ? maps / map_parameters() : 1.0);
  }
}

double Costs::attention_parameters() const {
  return static_cast<double>(storage::attention_parameters(model_));
}

double Costs::layer_parameters() const {
  return static_cast<double>(storage::layer_parameters(model_));
}

double Costs::map_parameters() const {
  return static_cast<double>(storage::map_parameters(attention_, model_));
}

std::vector<std::string> Costs::lora_modules() const {
  return finetune_.trains("lora") ? finetune_.target_modules : std::vector<std::string>{};
}

double Costs::trained_parameters() const {
  double parameters = static_cast<double>(  // of a layer
      storage::lora_parameters(model_, lora_modules(), finetune_.rank));
  if (finetune_.trains("maps")) parameters += map_parameters();
  if (finetune_.trains("window_factors")) parameters += heads_;
  if (finetune_.trains("norms")) parameters += 2.0 * (hidden_ + head_dim_);
  return layers_ * parameters;
}

double Costs::outer_bytes() const {
  return vocabulary_ * hidden_ * compute_bytes_ * (tied_ ? 1.0 : 2.0);
}

// What a layer's forward computes for its tokens, all of it: residual stream in and out, normed
// input, q, k, v, attention output, gate, up and their product; the softmax attention's fp32 tiles
// are linear in tokens as well.
double Costs::layer_activation_bytes(double tokens) const {
  const double projections = (2.0 * heads_ + 2.0 * kv_heads_) * head_dim_;
  return tokens * (compute_bytes_ * (4.0 * hidden_ + projections + 3.0 * intermediate_) +
                   kFloat * heads_ * (2.0 * head_dim_ + 128.0));
}

// Held at once in a forward whose activations are not kept. On the CPU the MLP goes over a few rows
// at a time; keys and values are there in fp32 too.
double Costs::forward_bytes(double tokens, bool on_gpu) const {
  if (on_gpu) return layer_activation_bytes(tokens);
  const double projections = (2.0 * heads_ + 2.0 * kv_heads_) * head_dim_;
  return tokens *
         (compute_bytes_ * (4.0 * hidden_ + projections) + kFloat * 2.0 * kv_heads_ * head_dim_);
}

// The residual stream, fp32 q, k, v, both outputs and their gradients, and features with gradients;
// the scores of window and sinks are there a chunk at a time.
double Costs::attention_training_bytes(double tokens) const {
  return tokens * (2.0 * compute_bytes_ * hidden_ +
                   kFloat * (heads_ * 8.0 * head_dim_ + 2.0 * (heads_ + key_maps_) * features_));
}

std::uint64_t Costs::capture_memory(int layers, bool on_gpu) const {
  // The CPU has q, k and v packed and as they were read.
  const double unpacked = on_gpu ? 0.0 : hidden_ * (heads_ + 2.0 * kv_heads_) * head_dim_;
  return whole(process_bytes(on_gpu) + layers * (layer_parameters() + unpacked) * compute_bytes_ +
               forward_bytes(transfer_tokens_, on_gpu) + vocabulary_ * hidden_ * compute_bytes_);
}

std::uint64_t Costs::transfer_memory(int layers, bool on_gpu) const {
  // Parameters, gradients, two Adam moments and the best copy, all fp32.
  const double training_state = layers * students_ * map_parameters() * 5.0 * kFloat;
  return whole(process_bytes(on_gpu) + layers * layer_parameters() * compute_bytes_ +
               training_state +
               std::max(forward_bytes(transfer_tokens_, on_gpu),
                        attention_training_bytes(transfer_tokens_)) +
               vocabulary_ * hidden_ * compute_bytes_);
}

std::uint64_t Costs::block_memory(int layers, bool on_gpu) const {
  return std::max(capture_memory(layers, on_gpu), transfer_memory(layers, on_gpu));
}

std::uint64_t Costs::logits_memory(const storage::LogitsPlan& plan, int layers, bool on_gpu) const {
  const double streams = static_cast<double>(plan.sequences.sequences_per_shard) *
                         finetune_seq_len_ * hidden_ * compute_bytes_;
  const double held = plan.from_boundary ? layers * layer_parameters() * compute_bytes_
                                         : layer_parameters() * compute_bytes_ + streams;
  return whole(process_bytes(on_gpu) + held + outer_bytes() +
               2.0 * forward_bytes(finetune_seq_len_, on_gpu) +
               std::min(finetune_seq_len_, kLogitRows) * vocabulary_ * (kFloat + compute_bytes_));
}

// Evaluation streams the layers: one at a time, what has LoRA of it twice, over a group of
// sequences, whose residual streams stay.
std::uint64_t Costs::evaluate_memory(bool on_gpu) const {
  const double budget = static_cast<double>(on_gpu ? storage::kEvaluateGroupBytesOnGpu
                                                   : storage::kEvaluateGroupBytes);
  const double stream = evaluate_columns_ * evaluate_stream_bytes_;
  const double group = std::min(std::max(budget, stream), evaluate_sequences_ * stream);
  const bool has_mlp_lora = std::ranges::any_of(finetune_.target_modules, [](const auto& module) {
    return std::string_view(storage::module_name(module).parent) == "mlp";
  });
  const double with_lora = has_mlp_lora ? layer_parameters() : attention_parameters();
  // Logits of teacher and student; of one of them some are gone before the other's are there.
  constexpr double kChunks = 1.6;
  return whole(process_bytes(on_gpu) + (layer_parameters() + with_lora) * compute_bytes_ +
               layers_ * students_ * map_parameters() * kFloat + outer_bytes() + group +
               2.0 * layer_activation_bytes(evaluate_tokens_) +
               kChunks * kLogitRows * vocabulary_ * kFloat);
}

double Costs::evaluate_reads(double sequences, bool on_gpu) const {
  const auto group = static_cast<double>(storage::sequences_of_evaluate_group(
      static_cast<std::int64_t>(evaluate_stream_bytes_), evaluate_columns_, on_gpu));
  return std::ceil(sequences / group);
}

// Every pass of a range that waits for its backward pass holds something of each of its layers.
double Costs::activations_in_flight(const RankShare& share) const {
  return 1.0 * share.layers * share.in_flight / share.num_ranges;
}

bool Costs::keeps_activations(const RankShare& share, int ranks, const RankDevice& device) const {
  std::int64_t budget = storage::kHostActivationBytes;
  if (device.on_gpu && device.gpu_memory_bytes > 0) {
    const auto gpu = static_cast<std::int64_t>(device.gpu_memory_bytes);
    budget = storage::gpu_activation_bytes(
        gpu, gpu - static_cast<std::int64_t>(loaded_bytes(share, ranks, true)));
  }
  const std::int64_t of_token =
      storage::kept_activation_bytes(model_,
                                     static_cast<std::int64_t>(compute_bytes_),
                                     lora_modules(),
                                     finetune_.rank);
  const std::int64_t bytes = share.layers * static_cast<std::int64_t>(finetune_tokens_) * of_token;
  return storage::keeps_activations(bytes, share.in_flight, share.num_ranges, budget);
}

double Costs::loaded_bytes(const RankShare& share, int ranks, bool on_gpu) const {
  // The CPU keeps each matrix packed for the forward and for the backward product.
  const double copies = on_gpu ? 1.0 : 2.0;
  const auto rows = static_cast<double>(on_gpu ? storage::kLossRowsOnGpu : storage::kLossRows);
  const double head = share.has_head ? (copies - 1.0) * vocabulary_ * hidden_ * compute_bytes_ +
                                           4.0 * rows * vocabulary_ * kFloat
                                     : 0.0;
  const double layers = share.layers;
  const double nccl = on_gpu && ranks > 1 && finetune_.exchange != "mpi" ? kNcclBytes : 0.0;
  return process_bytes(on_gpu) + nccl + (copies - 1.0) * layers * layer_bytes() +
         rank_bytes(share) + layers * map_parameters() * kFloat + head +
         layers / layers_ * trained_parameters() * 5.0 * kFloat;
}

std::uint64_t Costs::finetune_memory(const RankShare& share,
                                     int ranks,
                                     const RankDevice& device) const {
  // The share of what a forward computes that the backward reads.
  constexpr double kRead = 0.85;
  const double kept = activations_in_flight(share);
  const double activations = keeps_activations(share, ranks, device)
                                 ? kRead * kept * layer_activation_bytes(finetune_tokens_)
                                 : kept * finetune_tokens_ * hidden_ * compute_bytes_ +
                                       2.0 * layer_activation_bytes(finetune_tokens_) +
                                       attention_training_bytes(finetune_tokens_);
  return whole(loaded_bytes(share, ranks, device.on_gpu) + activations);
}

// One tensor at a time goes through the host.
std::uint64_t Costs::gpu_process_memory() const {
  const double largest = std::max(hidden_ * intermediate_, vocabulary_ * hidden_);
  return whole(kGpuHostBytes + largest * compute_bytes_);
}

std::uint64_t Costs::sequence_bytes() const {
  return whole(transfer_seq_len_ * hidden_ * shard_bytes_);
}

// Two checkpoints of an attempt are kept, and a third while it is written; none at the last step.
Costs::Disk Costs::disk() const {
  const double maps = layers_ * students_ * map_parameters() * kFloat;
  // Values, two moments and the best copy.
  constexpr double kCopies = 4.0;
  const auto written = [](int steps, int every) { return every > 0 ? (steps - 1) / every : 0; };
  const int of_transfer = written(transfer_.max_steps, transfer_.checkpoint_every);
  const int of_finetune = written(finetune_.max_steps, finetune_.checkpoint_every);
  const double trained = trained_parameters() * kFloat;
  Disk disk;
  disk.always = whole(tokens_bytes_ + kRecordBytes);
  disk.artifacts = whole(maps);
  disk.transfer_checkpoints = whole(kCopies * maps * std::clamp(of_transfer, 0, 2));
  disk.adapter = whole(trained);
  disk.finetune_checkpoints = whole(kCopies * trained * std::clamp(of_finetune, 0, 2));
  disk.third_checkpoint = whole(of_finetune > 2 ? kCopies * trained : 0.0);
  return disk;
}

Work Costs::layer_forward(std::int64_t seq_len) const {
  return {2.0 * layer_parameters(), 2.0 * static_cast<double>(seq_len) * heads_ * head_dim_};
}

Work Costs::layer_student() const {
  const double linear = 2.0 * (heads_ + key_maps_) * features_ * head_dim_ +
                        4.0 * heads_ * (2.0 * window_ + sinks_) * head_dim_;
  return {0.0, 2.0 * map_parameters() + linear};
}

Work Costs::layer_transfer(std::int64_t seq_len) const {
  return layer_forward(seq_len) + 3.0 * students_ * layer_student();
}

Work Costs::head() const { return {2.0 * vocabulary_ * hidden_, kLogitFlops * vocabulary_}; }

Work Costs::model_forward(std::int64_t seq_len) const {
  return layers_ * layer_forward(seq_len) + head();
}

Work Costs::model_student() const {
  return layers_ * (Work{2.0 * layer_parameters(), 0.0} + layer_student()) + head();
}

// Frozen weights have no gradient of their own: a product backward for one forward. What is not
// kept of a forward is computed again.
Work Costs::model_training(bool recomputes) const {
  const int layers = static_cast<int>(layers_);
  return range_forward(layers, true) + range_backward(layers, true, recomputes);
}

Work Costs::range_forward(int layers, bool has_head) const {
  const Work own = layers * (Work{2.0 * layer_parameters(), 0.0} + layer_student()) +
                   Work{0.0, 2.0 * layers / layers_ * trained_parameters()};
  return has_head ? own + head() : own;
}

Work Costs::range_backward(int layers, bool has_head, bool recomputes) const {
  const double again = recomputes ? 1.0 : 0.0;
  const Work products{2.0 * layer_parameters(), 0.0};
  const Work own = layers * ((1.0 + again) * products + (2.0 + again) * layer_student()) +
                   Work{0.0, 4.0 * layers / layers_ * trained_parameters()};
  return has_head ? own + head() : own;
}

double Costs::layer_bytes() const { return layer_parameters() * compute_bytes_; }
double Costs::model_bytes() const { return layers_ * layer_bytes() + outer_bytes(); }

double Costs::rank_bytes(const RankShare& share) const {
  const double embedding = vocabulary_ * hidden_ * compute_bytes_;
  const double outer = share.has_embedding && share.has_head   ? outer_bytes()
                       : share.has_embedding || share.has_head ? embedding
                                                               : 0.0;
  return share.layers * layer_bytes() + outer;
}

double Costs::gradient_bytes(int layers) const {
  return kFloat * layers / layers_ * trained_parameters();
}

double Costs::forward_message_bytes() const {
  return finetune_tokens_ * hidden_ * std::min(shard_bytes_, compute_bytes_);
}

double Costs::backward_message_bytes() const { return finetune_tokens_ * hidden_ * compute_bytes_; }

}  // namespace hedgerow::coordinator
