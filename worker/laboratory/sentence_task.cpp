#include "worker/laboratory/sentence_task.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "storage/base/error.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/laboratory/study.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker::laboratory {
namespace {

void expect_option(bool condition, const char* field, const std::string& what) {
  if (!condition)
    throw storage::Error(storage::ErrorKind::kUsage,
                         std::string("sentence task, ") + field + ": " + what);
}

// [P, 2, M] as the two sides of the pairs.
at::Tensor side(const at::Tensor& embeddings, std::int64_t which) {
  return embeddings.view({-1, 2, embeddings.size(1)}).select(1, which);
}

SentenceBatch held_out_batch(const LanguageText& text, const SentenceOptions& options) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.score_seed);
  return draw_sentences(text.held_out, options.score_pairs, options, generator);
}

std::vector<double> values_of(const at::Tensor& values) {
  const at::Tensor flat = values.to(at::kDouble).contiguous().flatten();
  const double* begin = flat.const_data_ptr<double>();
  return {begin, begin + flat.numel()};
}

}  // namespace

void SentenceOptions::validate() const {
  expect_option(least >= 1 && least <= most,
                "least",
                "expected 1 to " + std::to_string(most) + ", found " + std::to_string(least));
  expect_option(temperature > 0, "temperature", "expected a number above 0");
  expect_option(score_group >= 2 && score_pairs % score_group == 0,
                "score_group",
                "expected a divisor of score_pairs above 1, found " + std::to_string(score_group));
}

Sentences read_sentences(const std::filesystem::path& path) {
  const storage::SafetensorsFile file(path);
  const at::Tensor ids = to_tensor(file.at("ids")), ends = to_tensor(file.at("ends"));
  const std::int64_t held = ids.numel() / 20;
  Sentences sentences;
  sentences.text = {.train = ids.narrow(0, 0, ids.numel() - held),
                    .held_out = ids.narrow(0, ids.numel() - held, held)};
  sentences.options.least = 16;
  sentences.options.most = 32;
  sentences.options.begin_token = ends[0].item<std::int64_t>();
  sentences.options.end_token = ends[1].item<std::int64_t>();
  return sentences;
}

SentenceBatch draw_sentences(const at::Tensor& text,
                             std::int64_t num_pairs,
                             const SentenceOptions& options,
                             at::Generator& generator) {
  const auto integers = at::TensorOptions(at::kLong);
  expect_option(text.numel() > 2 * options.most, "text", "it is shorter than two pieces");
  const at::Tensor begins =
      at::randint(0, text.numel() - 2 * options.most, {num_pairs}, generator, integers);
  const at::Tensor lengths =
      at::randint(options.least, options.most + 1, {num_pairs, 2}, generator, integers);
  const at::Tensor all = at::stack({begins, begins + lengths.select(1, 0)}, 1).flatten();
  const at::Tensor offsets = at::arange(options.most, integers);
  const at::Tensor is_token = offsets.unsqueeze(0).lt(lengths.flatten().unsqueeze(1));
  const at::Tensor bytes = text.index({all.unsqueeze(1) + offsets});
  SentenceBatch batch{.ids = bytes.masked_fill(is_token.logical_not(), 0), .is_token = is_token};
  const auto column = [&](std::int64_t value) {
    return at::full({2 * num_pairs, 1}, value, integers);
  };
  if (options.end_token >= 0) {
    batch.ids = at::cat({batch.ids, column(0)}, 1)
                    .scatter(1, lengths.flatten().unsqueeze(1), options.end_token);
    batch.is_token = at::cat({column(1).to(at::kBool), batch.is_token}, 1);
  }
  if (options.begin_token >= 0) {
    batch.ids = at::cat({column(options.begin_token), batch.ids}, 1);
    batch.is_token = at::cat({column(1).to(at::kBool), batch.is_token}, 1);
  }
  return batch;
}

at::Tensor embed_sentences(const Transformer& model, const SentenceBatch& batch) {
  const at::Tensor hidden = model.hidden(batch.ids, batch.is_token);
  const at::Tensor weights = batch.is_token.to(hidden.scalar_type()).unsqueeze(-1);
  const at::Tensor sum = (hidden * weights).sum(1) / weights.sum(1);
  return sum / sum.norm(2, -1, /*keepdim=*/true).clamp_min(1e-12);
}

TrainingTask sentence_task(const LanguageText& text, const SentenceOptions& options) {
  options.validate();
  const auto loss = [=](const Transformer& model,
                        std::int64_t,
                        std::int64_t batch_size,
                        at::Generator& generator) {
    const at::Tensor embeddings =
        embed_sentences(model, draw_sentences(text.train, batch_size, options, generator));
    const at::Tensor cosines = at::matmul(side(embeddings, 0), side(embeddings, 1).t());
    return at::cross_entropy_loss(cosines / options.temperature, at::arange(batch_size, at::kLong));
  };
  const SentenceBatch held_out = held_out_batch(text, options);
  const auto score = [=](const Transformer& model) {
    const at::Tensor embeddings = embed_sentences(model, held_out);
    const std::int64_t size = options.score_group;
    const auto groups = [&](std::int64_t which) {
      return side(embeddings, which).reshape({-1, size, embeddings.size(1)});
    };
    const at::Tensor nearest = at::matmul(groups(0), groups(1).transpose(1, 2)).argmax(-1);
    return nearest.eq(at::arange(size, at::kLong)).to(at::kDouble).mean().item<double>();
  };
  return {.loss = loss, .score = score};
}

TrainingTask sentence_maps(const LanguageText& text, const SentenceOptions& options) {
  options.validate();
  const SentenceBatch held_out = held_out_batch(text, options);
  return {.loss =
              [=](const Transformer& model, std::int64_t, std::int64_t size, at::Generator& from) {
                const SentenceBatch batch = draw_sentences(text.train, size, options, from);
                return model.map_loss(batch.ids, batch.is_token);
              },
          .score =
              [=](const Transformer& model) {
                return model.map_loss(held_out.ids, held_out.is_token).item<double>();
              },
          .parameters = [](const Transformer& model) { return model.map_parameters(); }};
}

nlohmann::json similarity_kept(const Transformer& student,
                               const Transformer& teacher,
                               const SentenceBatch& batch) {
  const at::Tensor ours = embed_sentences(student, batch), theirs = embed_sentences(teacher, batch);
  const at::Tensor our_pairs = at::matmul(ours, ours.t()),
                   their_pairs = at::matmul(theirs, theirs.t());
  const std::int64_t count = ours.size(0);
  const at::Tensor above = at::triu_indices(count, count, /*offset=*/1);
  const auto pairs = [&](const at::Tensor& matrix) {
    return values_of(matrix.index({above[0], above[1]}));
  };
  const auto nearest = [](const at::Tensor& matrix) {
    return (matrix - 4 * at::eye(matrix.size(0), matrix.options())).argmax(-1);
  };
  return {{"cosine", (ours * theirs).sum(-1).mean().item<double>()},
          {"rank", rank_correlation(pairs(our_pairs), pairs(their_pairs))},
          {"same_nearest",
           nearest(our_pairs).eq(nearest(their_pairs)).to(at::kDouble).mean().item<double>()}};
}

}  // namespace hedgerow::worker::laboratory
