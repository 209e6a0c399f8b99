// Next words of a text file: the task of the studies that train a language model. Words are runs of
// letters and digits in lower case, and other signs one by one; the most frequent are the
// vocabulary, the rest one unknown word, whose positions are no targets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#include "worker/laboratory/training.hpp"

namespace hedgerow::worker::laboratory {

struct LanguageOptions {
  std::int64_t vocab_size = 2000;
  std::int64_t length = 64;           // tokens that the model reads
  std::int64_t max_words = 2000000;   // of the text's beginning
  double held_out = 0.05;             // the end of those
  std::int64_t score_sequences = 64;  // at even distances in the held-out end
  bool is_demonstration = false;      // of the leak: lets a bidirectional layout see its target
};

struct LanguageText {
  at::Tensor train, held_out;  // int64 [words]; 0 is the unknown word
};

// Throws kUsage naming the file: absent, or with fewer words than the held-out scores need.
[[nodiscard]] LanguageText read_language(const std::filesystem::path& path,
                                         const LanguageOptions& options);

// Score: loss in nats a word, held out. Throws kUsage for a bidirectional attention that is no
// demonstration, and where a held-out perplexity is under 2, which no text has: the model sees its
// target.
[[nodiscard]] TrainingTask language_task(const LanguageText& text, const LanguageOptions& options);

inline constexpr double kLowestPerplexity = 2;

}  // namespace hedgerow::worker::laboratory
