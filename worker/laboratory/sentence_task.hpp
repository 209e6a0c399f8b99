// Sentence embeddings without labels: which piece of a text follows which. Pieces of different
// lengths, padded on the right, go through an encoder that sees both ways; their embedding is the
// mean over tokens. Two neighbouring pieces must lie nearer to each other than to the other pieces
// of the batch. It stands in for the tasks of GLUE, whose data and whose pretrained encoders are
// not here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "worker/laboratory/language_task.hpp"
#include "worker/laboratory/training.hpp"

namespace hedgerow::worker::laboratory {

struct SentenceOptions {
  std::int64_t least = 48, most = 96;  // bytes, or tokens, of a piece
  // Tokens before and behind each piece, as BERT's [CLS] and [SEP]; -1: none.
  std::int64_t begin_token = -1, end_token = -1;
  double temperature = 0.1;  // of the cosines in the loss
  std::int64_t score_pairs = 256;
  std::int64_t score_group = 16;   // pairs among which one is looked for; a guess finds 1 of them
  std::uint64_t score_seed = 777;  // of the held-out pieces, the same for every model

  void validate() const;  // throws kUsage naming the field
};

// A text and how pieces of it are drawn.
struct Sentences {
  LanguageText text;
  SentenceOptions options;
};
// What deploy/huggingface/encode_text.py writes: "ids" int64 [tokens], and "ends" int64 [2], what a
// sentence begins and ends with. Throws as storage's readers do.
[[nodiscard]] Sentences read_sentences(const std::filesystem::path& path);

struct SentenceBatch {
  // int64 [2 P, T], T = most and the tokens beside a piece; piece 2 i + 1 follows piece 2 i.
  at::Tensor ids;
  at::Tensor is_token;  // bool [2 P, T]
};

[[nodiscard]] SentenceBatch draw_sentences(const at::Tensor& text,
                                           std::int64_t num_pairs,
                                           const SentenceOptions& options,
                                           at::Generator& generator);

// [2 P, M] of length 1.
[[nodiscard]] at::Tensor embed_sentences(const Transformer& model, const SentenceBatch& batch);

// Score: how often the next piece is the nearest of its group, 0 to 1. A batch of n has n pairs.
// Throws kUsage where the text is shorter than two pieces.
[[nodiscard]] TrainingTask sentence_task(const LanguageText& text, const SentenceOptions& options);
// Transformer::map_loss on such batches; score: the same on held-out ones.
[[nodiscard]] TrainingTask sentence_maps(const LanguageText& text, const SentenceOptions& options);

// How much of the teacher's similarity a student keeps, over held-out pieces: "cosine" of each
// piece's two embeddings, "rank" (Spearman) of the similarities of all pairs, "same_nearest".
[[nodiscard]] nlohmann::json similarity_kept(const Transformer& student,
                                             const Transformer& teacher,
                                             const SentenceBatch& batch);

}  // namespace hedgerow::worker::laboratory
