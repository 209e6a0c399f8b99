// Next bytes of a text file: the task of the studies that train a language model. Of bytes and not
// of words, because a small model soon needs the bytes before the last one, in their order: what
// weighs all keys alike is then worse than softmax, as it must be where attentions are compared.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#include "worker/laboratory/training.hpp"

namespace hedgerow::worker::laboratory {

struct LanguageOptions {
  std::int64_t length = 128;           // bytes that the model reads
  std::int64_t max_bytes = 8000000;    // of the text's beginning
  double held_out = 0.05;              // the end of those
  std::int64_t score_sequences = 128;  // at even distances in the held-out end
  bool is_demonstration = false;       // of the leak: lets a bidirectional layout see its target
};

struct LanguageText {
  at::Tensor train, held_out;  // int64 [bytes], 0 to 255
};

// Throws kUsage naming the file: absent, or with fewer bytes than the held-out scores need.
[[nodiscard]] LanguageText read_language(const std::filesystem::path& path,
                                         const LanguageOptions& options);

// Score: loss in nats a byte, held out. Throws kUsage for a bidirectional attention that is no
// demonstration, and where a held-out perplexity is under 2, which no text has: the model sees its
// target.
[[nodiscard]] TrainingTask language_task(const LanguageText& text, const LanguageOptions& options);

// Inputs without their targets, int64 [B, length]: at random places, and of the scores.
[[nodiscard]] at::Tensor draw_bytes(const at::Tensor& text,
                                    std::int64_t batch_size,
                                    const LanguageOptions& options,
                                    at::Generator& generator);
[[nodiscard]] at::Tensor even_bytes(const at::Tensor& text, const LanguageOptions& options);

inline constexpr std::int64_t kNumBytes = 256;  // the vocabulary
inline constexpr double kLowestPerplexity = 2;  // a byte; far below what a small model gets to

}  // namespace hedgerow::worker::laboratory
