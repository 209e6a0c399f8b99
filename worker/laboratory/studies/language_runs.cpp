#include "worker/laboratory/studies/language_runs.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>

namespace hedgerow::worker::laboratory {
namespace {

constexpr int kSeeds = 3;

TransformerOptions small_model() {
  TransformerOptions model;
  model.vocab_size = kNumBytes;
  model.hidden_size = 64;
  model.num_layers = 2;
  model.num_heads = 4;
  model.mlp_size = 128;
  model.tied_head = true;
  return model;
}

TrainingOptions small_training() {
  TrainingOptions training;
  training.steps = 400;
  training.batch_size = 16;
  training.learning_rate = 3e-3;
  training.warmup_steps = 50;
  training.schedule = RateSchedule::kCosine;
  training.clip = 1.0;  // all alike; 004 clips what has a gate, and nothing else
  training.score_every = 100;
  return training;
}

nlohmann::json row_of(const std::string& name, const TrialResult& result) {
  nlohmann::json losses = nlohmann::json::array();
  double seconds = 0;
  for (const Trial& trial : result.seeds) {
    losses.push_back(trial.is_finite ? nlohmann::json(trial.final_score()) : nlohmann::json());
    seconds += trial.seconds;
  }
  return {{"attention", name},
          {"loss", mean(result.final_scores())},
          {"losses", losses},
          {"seconds", seconds}};
}

}  // namespace

std::vector<double> LanguageRuns::above_first(std::size_t run) const {
  std::vector<double> above;
  for (std::size_t s = 0; s < results[run].seeds.size(); ++s) {
    const Trial& trial = results[run].seeds[s];
    const Trial& first = results.front().seeds[s];
    above.push_back(trial.is_finite && first.is_finite ? trial.final_score() - first.final_score()
                                                       : std::numeric_limits<double>::infinity());
  }
  return above;
}

LanguageSetting small_setting() {
  return {.model = small_model(), .training = small_training(), .language = {}};
}

LanguageRuns run_language(const std::vector<LanguageRun>& runs,
                          const StudyOptions& options,
                          const LanguageSetting& setting) {
  const LanguageOptions& language = setting.language;
  const LanguageText text = read_language(options.text, language);
  const int num_seeds = options.num_seeds > 0 ? options.num_seeds : kSeeds;
  const TransformerOptions& model = setting.model;
  const TrainingOptions& training = setting.training;
  std::vector<TrialPlan> plans;
  for (const LanguageRun& run : runs) {
    plans.push_back({.model = model, .training = training});
    plans.back().model.attention = run.attention;
    plans.back().model.layer_features = run.layer_features;
  }
  LanguageRuns done;
  done.results = run_trials(plans,
                            language_task(text, language),
                            num_seeds,
                            /*ids=*/{},
                            options,
                            [&](std::size_t plan, const TrialResult& result) {
                              if (options.on_row)
                                options.on_row(row_of(runs[plan].attention.name, result));
                            });
  done.study.settings = {{"layers", model.num_layers},
                         {"heads", model.num_heads},
                         {"width", model.hidden_size},
                         {"vocabulary", kNumBytes},
                         {"length", language.length},
                         {"bytes", text.train.numel()},
                         {"steps", training.steps},
                         {"batch", training.batch_size},
                         {"learning_rate", training.learning_rate},
                         {"clip", training.clip},
                         {"seeds", num_seeds},
                         {"threads", options.num_threads}};
  for (std::size_t i = 0; i < runs.size(); ++i)
    done.study.rows.push_back(row_of(runs[i].attention.name, done.results[i]));
  done.study.curves = curves_of(plans, done.results);
  done.study.score_title = "loss of held-out text, nats a byte";
  return done;
}

std::string nats(const std::vector<double>& values) {
  std::array<char, 96> text{};
  const auto [least, most] = std::ranges::minmax(values);
  std::snprintf(text.data(), text.size(), "%+.3f (%+.3f to %+.3f) nats", mean(values), least, most);
  return text.data();
}

nlohmann::json published_language() {
  return {{"width", 1024},
          {"mlp", 2048},
          {"heads", 16},
          {"layers", 20},
          {"batch", 36},
          {"length", 1024},
          {"learning_rate", 1e-4},
          {"weight_decay", 0.01},
          {"warmup_steps", 10000},
          {"steps", 100000},
          {"texts", "Pile, SlimPajama, FineWeb"}};
}

}  // namespace hedgerow::worker::laboratory
