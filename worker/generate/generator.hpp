// Text from a student (recurrent, constant memory but for layers that keep softmax) or from its
// teacher (a plain KV cache), for a batch of prompts of different lengths. A prompt is run through
// the layers alone, at its own length, so that it gives what it gives alone; then all rows step
// together, and a row leaves the batch when it ends. A model that one device cannot hold lies on
// the ranks of a pipeline, each with its layers and their caches; tokens and logits are the same
// bytes for any number of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "storage/shape/mesh.hpp"
#include "worker/comm/communicator.hpp"
#include "worker/generate/attention_cache.hpp"
#include "worker/generate/sampler.hpp"
#include "worker/model/lora.hpp"
#include "worker/model/student.hpp"

namespace hedgerow::worker {

struct GenerateOptions {
  std::int64_t max_new_tokens = 40;
  SamplingOptions sampling;
  // A row ends with its first one of these, which is part of its result. Empty: the model's own.
  std::vector<std::int64_t> end_tokens;
  // On CUDA, a step that repeats becomes one graph; else its kernels are launched one by one. Off:
  // on an H100 a graph's tokens at batch 1 were others than those of the launches (tests/gpu).
  bool records_steps = false;
};

// What a model gives a token that follows others.
struct TokenScore {
  double log_probability = 0.0;  // nats
  bool is_likeliest = false;     // greedy decoding would choose it
};
struct ScoredText {
  std::vector<std::int64_t> ids;
  std::int64_t first = 1;  // ids[first ..] are scored; at least 1
};

// Where a process stands among those that hold a model together. Rank 0 has the embedding, the last
// one the final norm, the head and the sampler.
struct PipelinePlace {
  Communicator* ranks = nullptr;  // outlives its holder; nullptr: this process is alone
  storage::LayerRange layers = {};

  [[nodiscard]] bool is_first() const { return ranks == nullptr || ranks->rank() == 0; }
  [[nodiscard]] bool is_last() const {
    return ranks == nullptr || ranks->rank() == ranks->world_size() - 1;
  }
};
// `ranks` nullptr: all layers. Throws kUsage for more ranks than layers.
[[nodiscard]] PipelinePlace place_among(Communicator* ranks, const storage::ModelConfig& config);

class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  // Whether on_logits is called: the logits of every step then come to the host.
  [[nodiscard]] virtual bool wants_logits() const { return false; }
  // The logits [V] fp32 on the CPU from which a row's token at `position` (from 0, prompt included)
  // is chosen. On the last rank alone; what follows is called on every rank.
  virtual void on_logits(std::int64_t /*row*/,
                         std::int64_t /*position*/,
                         const at::Tensor& /*logits*/) {}
  virtual void on_token(std::int64_t /*row*/, std::int64_t /*position*/, std::int64_t /*token*/) {}
  // The share of the prompts' layers that have been run, 0 to 1, of those of this rank.
  virtual void on_prefill(double /*share*/) {}
  virtual void on_row(std::int64_t row,
                      const std::vector<std::int64_t>& ids) = 0;  // new tokens, at a row's end
};

// Weights in memory; used by one thread.
class Generator {
 public:
  // No student: the teacher. Computes in the dtype of the weights, between layers and ranks too, as
  // `evaluate` does. `layers` and `outer` are those of the place, by default of a process that is
  // alone; the student has an entry for every layer.
  Generator(const storage::ModelConfig& config,
            OuterWeights outer,
            std::vector<LayerWeights> layers,
            std::optional<Student> student,
            PipelinePlace place = {});
  // Loads what the place has of the model onto `device`, where the student is, with the adapter
  // merged into its weights; `progress` gets the share done.
  static Generator load(const storage::ModelDirectory& model,
                        std::optional<Student> student,
                        const LoraAdapter* adapter,
                        const at::Device& device,
                        at::ScalarType compute_dtype,
                        const std::function<void(double)>& progress = {},
                        std::optional<PipelinePlace> place = std::nullopt);

  // Every rank calls it with the same prompts and options. Throws as Communicator::receive; kUsage
  // naming an empty prompt, a token outside the vocabulary, logits that are not finite, or what is
  // beyond the window of a softmax layer.
  void run(const std::vector<std::vector<std::int64_t>>& prompts,
           const GenerateOptions& options,
           GenerationObserver& observer);

  // The scores of each text's tokens from `first` on, in the order of the texts. No padding: the
  // texts of a pass stand behind one another for the products and apart for the attention. Of a
  // process that is alone. Throws kUsage as run(), and for a `first` outside its text.
  [[nodiscard]] std::vector<std::vector<TokenScore>> score(const std::vector<ScoredText>& texts);

  // Bytes of this rank's caches after the last run's last step: what constant memory means.
  [[nodiscard]] std::int64_t cache_bytes() const { return cache_bytes_; }

 private:
  struct Batch;
  Batch start(const std::vector<std::vector<std::int64_t>>& prompts,
              at::Tensor& first,
              GenerationObserver& observer);
  [[nodiscard]] at::Device device() const { return layers_.front().attention_norm.device(); }
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] at::Tensor embedded(const std::vector<std::int64_t>& ids) const;
  at::Tensor prefill(const std::vector<std::int64_t>& prompt,
                     std::vector<AttentionCache>& caches,
                     const std::function<void()>& on_layer);
  at::Tensor step(Batch& batch);
  void score_pass(std::span<const ScoredText> texts,
                  std::vector<std::vector<TokenScore>>& scores) const;
  at::Tensor run_layers(const at::Tensor& hidden,
                        const at::Tensor& positions,
                        std::vector<AttentionCache>& caches);
  // Whether the batch has kept its rows for some steps.
  [[nodiscard]] bool can_record(const Batch& batch) const;
  // Hidden states and tokens of one rank to the next and back.
  [[nodiscard]] at::Tensor received(std::int64_t num_rows) const;
  void hand_on(const at::Tensor& hidden);
  void share(std::vector<std::int64_t>& tokens);
  [[nodiscard]] std::vector<std::int64_t> choose(const Batch& batch,
                                                 const at::Tensor& logits,
                                                 const SamplingOptions& sampling,
                                                 GenerationObserver& observer) const;
  [[nodiscard]] const std::optional<kernels::HybridParameters>& parameters(std::size_t layer) const;
  void check(const std::vector<std::vector<std::int64_t>>& prompts,
             std::int64_t max_new_tokens) const;

  storage::ModelConfig config_;
  OuterWeights outer_;
  std::vector<LayerWeights> layers_;
  std::optional<Student> student_;
  PipelinePlace place_;
  at::ScalarType dtype_;  // of the weights
  RopeTable rope_;
  std::unique_ptr<Message> outgoing_;  // to the next rank, the last one
  std::int64_t cache_bytes_ = 0;
};

}  // namespace hedgerow::worker
