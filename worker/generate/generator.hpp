// Text from a student (recurrent, constant memory but for layers that keep softmax) or from its
// teacher (a plain KV cache), for a batch of prompts of different lengths. A prompt is run through
// the layers alone, at its own length, so that it gives what it gives alone; then all rows step
// together, and a row leaves the batch when it ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

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
};

class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  // The logits [V] fp32 on the CPU from which a row's token at `position` (from 0, prompt included)
  // is chosen.
  virtual void on_logits(std::int64_t /*row*/,
                         std::int64_t /*position*/,
                         const at::Tensor& /*logits*/) {}
  // The share of the prompts' layers that have been run, 0 to 1.
  virtual void on_prefill(double /*share*/) {}
  virtual void on_row(std::int64_t row,
                      const std::vector<std::int64_t>& ids) = 0;  // new tokens, at a row's end
};

// Weights in memory; used by one thread.
class Generator {
 public:
  // No student: the teacher. Computes in the dtype of the weights, between layers too, as
  // `evaluate` does.
  Generator(const storage::ModelConfig& config,
            OuterWeights outer,
            std::vector<LayerWeights> layers,
            std::optional<Student> student);
  // Loads the model onto `device`, where the student is, with the adapter merged into its weights;
  // `progress` gets the share done.
  static Generator load(const storage::ModelDirectory& model,
                        std::optional<Student> student,
                        const LoraAdapter* adapter,
                        const at::Device& device,
                        at::ScalarType compute_dtype,
                        const std::function<void(double)>& progress = {});

  // Throws kUsage naming an empty prompt, a token outside the vocabulary, logits that are not
  // finite, or what is beyond the window of a softmax layer.
  void run(const std::vector<std::vector<std::int64_t>>& prompts,
           const GenerateOptions& options,
           GenerationObserver& observer);

  // Of the caches after the last run's last step: what constant memory means.
  [[nodiscard]] std::int64_t cache_bytes() const { return cache_bytes_; }

 private:
  struct Batch;
  Batch start(const std::vector<std::vector<std::int64_t>>& prompts,
              at::Tensor& first,
              GenerationObserver& observer) const;
  [[nodiscard]] at::Device device() const { return outer_.embed_tokens.device(); }
  [[nodiscard]] at::Tensor embedded(const std::vector<std::int64_t>& ids) const;
  at::Tensor prefill(const std::vector<std::int64_t>& prompt,
                     std::vector<AttentionCache>& caches,
                     const std::function<void()>& on_layer) const;
  at::Tensor step(const std::vector<std::int64_t>& tokens,
                  const std::vector<std::int64_t>& positions,
                  std::vector<AttentionCache>& caches) const;
  [[nodiscard]] const std::optional<kernels::HybridParameters>& parameters(std::size_t layer) const;
  void check(const std::vector<std::vector<std::int64_t>>& prompts,
             std::int64_t max_new_tokens) const;

  storage::ModelConfig config_;
  OuterWeights outer_;
  std::vector<LayerWeights> layers_;
  std::optional<Student> student_;
  RopeTable rope_;
  std::int64_t cache_bytes_ = 0;
};

}  // namespace hedgerow::worker
