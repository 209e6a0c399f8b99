// 000 table 2 at what is here: a small encoder, trained here on which piece of a text follows which
// (sentence_task), in place of BERT on GLUE; or a sentence encoder that was trained elsewhere
// (StudyOptions::model), on the same task. It sees both ways and its sequences are padded on the
// right. Converted as the decoder is; before the finetuning it is also asked how much of the
// teacher's similarity the maps alone keep.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <filesystem>

#include "worker/laboratory/bert.hpp"
#include "worker/laboratory/sentence_task.hpp"
#include "worker/laboratory/studies/conversion.hpp"
#include "worker/laboratory/studies/studies.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr int kEncoderSeeds = 3;
constexpr std::int64_t kComparedPairs = 32;  // 64 pieces, 2,016 pairs of them
constexpr std::uint64_t kComparedSeed = 778;

TransformerOptions small_encoder(const SentenceOptions& sentences) {
  TransformerOptions model;
  model.vocab_size = kNumBytes;
  model.norm = LayerNormKind::kLayer;
  model.positions = Positions::kLearned;
  model.max_positions = sentences.most;
  model.tied_head = true;
  model.projection_biases = true;
  model.attention.causal = false;
  return model;
}

// Of a trained encoder: 000's rate is 1e-5 over epochs of GLUE, ours is 50 steps.
void take_model(const std::string& directory, ConversionPlan& plan) {
  plan.model = bert_options(directory);
  plan.load = [directory](const Transformer& model) { load_bert(model, directory); };
  plan.teacher.steps = 0;
  plan.finetune.steps = 50;
  plan.finetune.batch_size = 16;
  plan.finetune.learning_rate = 3e-5;
}

ConversionPlan encoder_plan(const Sentences& given, const StudyOptions& options) {
  const auto& [text, sentences] = given;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(kComparedSeed);
  const SentenceBatch compared =
      draw_sentences(text.held_out, kComparedPairs, sentences, generator);
  ConversionPlan plan;
  plan.model = small_encoder(sentences);
  plan.teacher = {.steps = 1000,
                  .batch_size = 32,
                  .learning_rate = 2e-3,
                  .warmup_steps = 50,
                  .schedule = RateSchedule::kCosine};
  plan.distil = {.steps = 100,
                 .batch_size = 16,
                 .learning_rate = 1e-2,
                 .weight_decay = 0,
                 .warmup_steps = 10,
                 .score_every = 50};
  plan.finetune = {
      .steps = 100, .batch_size = 32, .learning_rate = 6e-4, .warmup_steps = 10, .score_every = 50};
  if (!options.model.empty()) take_model(options.model, plan);
  plan.task = sentence_task(text, sentences);
  plan.maps = sentence_maps(text, sentences);
  plan.compare = [compared](const Transformer& student, const Transformer& teacher) {
    return similarity_kept(student, teacher, compared);
  };
  return plan;
}

// As losses, so that the better of two is the lower.
std::vector<double> missed(const std::vector<double>& scores) {
  std::vector<double> result;
  for (const double score : scores) result.push_back(1 - score);
  return result;
}

std::vector<double> compared_ranks(const std::vector<Converted>& seeds) {
  std::vector<double> result;
  for (const Converted& seed : seeds) result.push_back(seed.compared.at("rank").get<double>());
  return result;
}

Claim better_claim(const std::string& claim,
                   const std::string& paper,
                   const std::vector<double>& better,
                   const std::vector<double>& worse) {
  return order_claim(claim,
                     paper,
                     percent(mean(better)) + " over " + percent(mean(worse)),
                     missed(better),
                     missed(worse));
}

}  // namespace

nlohmann::json published_encoder() {
  return {
      {"model", "BERT-base"},
      {"tasks", "GLUE"},
      {"distil", {{"learning_rate", 1e-2}, {"weight_decay", 0}, {"epochs", 5}}},
      {"finetune", {{"learning_rate", 1e-5}, {"schedule", "cosine"}}},
      {"average", {{"softmax", 83.3}, {"t2r", 74.0}, {"t2r_distilled", 77.9}, {"hedgehog", 82.7}}}};
}

StudyResult run_encoder(const StudyOptions& options) {
  const Sentences sentences =
      options.model.empty() ? Sentences{.text = read_language(options.text, {}), .options = {}}
                            : read_sentences(options.tokens);
  const ConversionPlan plan = encoder_plan(sentences, options);
  const auto conversions = paper_conversions(/*causal=*/false);
  const int num_seeds = options.num_seeds > 0 ? options.num_seeds : kEncoderSeeds;
  const ConversionResult result = convert(plan, conversions, num_seeds, options);
  StudyResult study = study_of(plan, conversions, result, options);
  const bool is_given = !options.model.empty();
  study.settings[is_given ? "piece_tokens" : "piece_bytes"] = {sentences.options.least,
                                                               sentences.options.most};
  study.settings["chance"] = 1.0 / static_cast<double>(sentences.options.score_group);
  if (is_given)
    study.settings["model"] = std::filesystem::path(options.model).lexically_normal().filename();
  study.curve_title = std::string(is_given ? "a trained" : "a small") +
                      " sentence encoder, finetuned with each attention";
  study.score_title = "next piece found among 16";
  const auto t2r = result.final_scores(1), distilled = result.final_scores(2),
             hedgehog = result.final_scores(3);
  const auto kept_t2r = compared_ranks(result.converted[1]),
             kept_distilled = compared_ranks(result.converted[2]),
             kept_hedgehog = compared_ranks(result.converted[3]);
  std::vector<bool> keeps;
  std::vector<double> shares;
  for (std::size_t s = 0; s < hedgehog.size(); ++s) {
    shares.push_back(hedgehog[s] / result.final_scores(0)[s]);
    keeps.push_back(shares.back() >= 0.97);
  }
  study.claims = {
      better_claim("finetuned: T2R with Hedgehog's distillation is over T2R",
                   "77.9 over 74.0",
                   distilled,
                   t2r),
      better_claim("finetuned: Hedgehog is over T2R with its distillation",
                   "82.7 over 77.9",
                   hedgehog,
                   distilled),
      claim_of("finetuned: Hedgehog keeps 97 % of softmax's score",
               "99.3 %",
               percent(mean(shares)),
               keeps),
      better_claim("maps alone: T2R's keep more similarity distilled than drawn (rank correlation)",
                   "not given",
                   kept_distilled,
                   kept_t2r),
      better_claim("maps alone: Hedgehog's keep more similarity than T2R's distilled",
                   "not given",
                   kept_hedgehog,
                   kept_distilled)};
  return study;
}

}  // namespace hedgerow::worker::laboratory
