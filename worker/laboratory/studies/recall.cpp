// 000 section B.1, table 4 and figure 5: a decoder trained from scratch on associative recall with
// each attention. The settings were chosen by softmax alone (what it learns soon with), and all
// attentions share them. The first steps have sequences of 32 tokens, of the same vocabulary: 000
// evaluates at 128 and does not say what it trains on. From the start at 128, softmax had learnt
// nothing after 600 such steps.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "worker/laboratory/recall_task.hpp"
#include "worker/laboratory/studies/studies.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr double kSolved = 0.95, kStopAt = 0.995;
constexpr std::int64_t kEntropyBatch = 32, kShortSteps = 200;
constexpr double kPaperLimit = 0.20;  // what 000 says of the attentions that fail
constexpr std::size_t kFewestRelated = 5;
constexpr double kStrongRelation = -0.5;  // of the ranks of entropy and accuracy

ScoreSpec product(const char* name, Map map) {
  return {.name = name, .score = Score::kProduct, .map = map};
}

std::vector<ScoreSpec> attentions() {
  ScoreSpec performer = product("performer", Map::kFavor);
  performer.num_features = 64;
  performer.orthogonal = true;
  ScoreSpec exp2 = product("exp_2", Map::kExp);
  exp2.temperature = 2;
  ScoreSpec taylor;  // the polynomial of s that the map's features multiply to
  taylor.name = "taylor_2";
  taylor.score = Score::kSeries;
  taylor.order = 2;
  return {ScoreSpec{},
          product("hedgehog", Map::kHedgehog),
          exp2,
          taylor,
          product("exp_1", Map::kExp),
          product("elu", Map::kEluPlusOne),
          product("relu", Map::kRelu),
          performer,
          product("cosformer", Map::kCosFormer)};
}

TransformerOptions recall_model() {
  TransformerOptions model;
  model.hidden_size = 128;
  model.num_layers = 2;
  model.mlp_size = 64;
  return model;
}

TrainingOptions recall_training() {
  return {.steps = 400,
          .batch_size = 16,
          .learning_rate = 2e-3,
          .warmup_steps = 50,
          .schedule = RateSchedule::kCosine,
          .score_every = 50,
          .stop_at = kStopAt};
}

// The first score at or above kSolved, or nothing.
nlohmann::json steps_to_solve(const Trial& trial) {
  for (const CurvePoint& point : trial.curve) {
    if (point.score >= kSolved) return point.step;
  }
  return nullptr;
}

nlohmann::json recall_row(const std::string& name, const TrialResult& result) {
  nlohmann::json steps = nlohmann::json::array(), accuracy = nlohmann::json::array();
  double seconds = 0;
  for (const Trial& trial : result.seeds) {
    steps.push_back(steps_to_solve(trial));
    accuracy.push_back(trial.final_score());
    seconds += trial.seconds;
  }
  return {{"attention", name},
          {"accuracy", mean(result.final_scores())},
          {"accuracies", accuracy},
          {"steps_to_95", steps},
          {"entropy", mean(result.entropies)},
          {"seconds", seconds}};
}

template <typename Holds>
std::vector<bool> each(const TrialResult& result, const Holds& holds) {
  std::vector<bool> answers;
  for (const double score : result.final_scores()) answers.push_back(holds(score));
  return answers;
}

std::vector<Claim> claims_of(const std::vector<ScoreSpec>& specs,
                             const std::vector<TrialResult>& results) {
  std::vector<Claim> claims;
  const auto solves = [](double score) { return score >= kSolved; };
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string& name = specs[i].name;
    const std::string ours = percent(mean(results[i].final_scores()));
    if (name == "softmax") {
      claims.push_back(
          claim_of("softmax solves recall", "100 %", ours, each(results[i], [](double score) {
                     return score >= 0.99;
                   })));
    } else if (name == "hedgehog" || name == "exp_2") {
      claims.push_back(
          claim_of(name + " solves recall (95 %)", "solved", ours, each(results[i], solves)));
    } else if (name != "taylor_2") {  // of which 000 says nothing
      claims.push_back(
          claim_of(name + " stays below 20 %", "< 20 %", ours, each(results[i], [](double score) {
                     return score < kPaperLimit;
                   })));
    }
  }
  if (results.size() < kFewestRelated) return claims;
  std::vector<bool> related;
  std::vector<double> relations;
  for (std::size_t s = 0; s < results.front().seeds.size(); ++s) {
    std::vector<double> entropy, accuracy;
    for (const TrialResult& result : results) {
      entropy.push_back(result.entropies[s]);
      accuracy.push_back(result.seeds[s].final_score());
    }
    relations.push_back(rank_correlation(entropy, accuracy));
    related.push_back(relations.back() <= kStrongRelation);
  }
  const std::string value = std::to_string(mean(relations)).substr(0, 5);
  claims.push_back(claim_of("low entropy goes with accuracy (rank correlation <= -0.5)",
                            "strong correspondence",
                            value,
                            related));
  return claims;
}

}  // namespace

nlohmann::json published_recall() {
  return {{"layers", 4},
          {"heads", 4},
          {"positions", "rotary"},
          {"vocabulary", 40},
          {"length", 128},
          {"not_given_by_the_paper", "width, optimizer, steps, loss mask"}};
}

StudyResult run_recall(const StudyOptions& options) {
  RecallOptions task;
  task.short_steps = kShortSteps;
  const int num_seeds = options.num_seeds > 0 ? options.num_seeds : 1;
  std::vector<ScoreSpec> specs = attentions();
  std::erase_if(specs, [&](const ScoreSpec& spec) {
    return !options.only.empty() && spec.name != "softmax" &&
           std::ranges::find(options.only, spec.name) == options.only.end();
  });
  std::vector<TrialPlan> plans;
  for (const ScoreSpec& spec : specs) {
    plans.push_back({.model = recall_model(), .training = recall_training()});
    plans.back().model.attention = spec;
  }
  auto generator = at::make_generator<at::CPUGeneratorImpl>(task.score_seed);
  const at::Tensor ids = draw_recall(task, kEntropyBatch, generator).ids;
  const auto results = run_trials(plans,
                                  recall_task(task),
                                  num_seeds,
                                  ids,
                                  options,
                                  [&](std::size_t plan, const TrialResult& result) {
                                    if (options.on_row)
                                      options.on_row(recall_row(specs[plan].name, result));
                                  });
  StudyResult study;
  const TrainingOptions training = recall_training();
  const TransformerOptions model = recall_model();
  study.settings = {{"layers", model.num_layers},
                    {"heads", model.num_heads},
                    {"width", model.hidden_size},
                    {"mlp", model.mlp_size},
                    {"schedule", "cosine to a tenth, 50 steps of warm-up, clipped at 1"},
                    {"steps", training.steps},
                    {"batch", training.batch_size},
                    {"learning_rate", training.learning_rate},
                    {"vocabulary", task.vocab_size},
                    {"length", task.length},
                    {"short_length", task.short_length},
                    {"short_steps", task.short_steps},
                    {"seeds", num_seeds},
                    {"threads", options.num_threads}};
  for (std::size_t i = 0; i < specs.size(); ++i)
    study.rows.push_back(recall_row(specs[i].name, results[i]));
  study.curves = curves_of(plans, results);
  study.curve_title = "associative recall, 128 tokens";
  study.score_title = "accuracy";
  study.claims = claims_of(specs, results);
  return study;
}

}  // namespace hedgerow::worker::laboratory
