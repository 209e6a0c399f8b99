// What the studies that train a language model share: a small language model, its training, and how
// far each attention ends above softmax.
#pragma once

#include <string>
#include <vector>

#include "worker/laboratory/language_task.hpp"
#include "worker/laboratory/study.hpp"

namespace hedgerow::worker::laboratory {

struct LanguageRun {
  ScoreSpec attention;
  std::vector<std::int64_t> layer_features = {};  // num_features of each layer; empty: the spec's
};

struct LanguageSetting {
  TransformerOptions model;
  TrainingOptions training;
  LanguageOptions language;
};
// 004's and 000's, at the size that runs here.
[[nodiscard]] LanguageSetting small_setting();

struct LanguageRuns {
  StudyResult study;                 // settings, rows and curves; no claims yet
  std::vector<TrialResult> results;  // in the order of the runs
  // Final loss minus that of run 0 with the same seed, a number a seed; infinite where a loss was
  // not finite.
  [[nodiscard]] std::vector<double> above_first(std::size_t run) const;
};

// Trains all runs on options.text; run 0 is softmax.
[[nodiscard]] LanguageRuns run_language(const std::vector<LanguageRun>& runs,
                                        const StudyOptions& options,
                                        const LanguageSetting& setting = small_setting());

// "+0.031 (0.010 to 0.052)": mean and range, in nats.
[[nodiscard]] std::string nats(const std::vector<double>& values);

// 004's training at 300M, which is not run here.
[[nodiscard]] nlohmann::json published_language();

}  // namespace hedgerow::worker::laboratory
