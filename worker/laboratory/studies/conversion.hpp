// What the studies that turn a trained model into linear attention share (000 section 5): a softmax
// model is trained, its attention is swapped, the maps are distilled where asked for (000 eq. 3),
// then all weights are finetuned on the same task. Softmax itself is finetuned for as many steps
// beside them, so that a share of its score is like for like.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "worker/laboratory/study.hpp"

namespace hedgerow::worker::laboratory {

struct Conversion {
  ScoreSpec attention;
  bool is_distilled = false;
};

struct ConversionPlan {
  TransformerOptions model;                           // the teacher
  std::function<void(const Transformer&)> load = {};  // its weights, which are trained on then
  TrainingOptions teacher, distil, finetune;
  TrainingTask task;  // of the teacher and of finetuning
  TrainingTask maps;  // map_loss on the task's inputs; its parameters are the maps'
  // Measured on a model before it is finetuned; empty: nothing is.
  std::function<nlohmann::json(const Transformer& student, const Transformer& teacher)> compare =
      {};
};

struct Converted {
  Trial distil, finetune;
  double swapped_score = 0;  // of the task, before finetuning
  nlohmann::json compared;
};

struct ConversionResult {
  std::vector<Trial> teachers;                    // of each seed
  std::vector<std::vector<Converted>> converted;  // of each conversion and seed
  [[nodiscard]] std::vector<double> final_scores(std::size_t conversion) const;
};

// {softmax, T2R, T2R with Hedgehog's distillation, Hedgehog}, in this order, causal or both ways.
[[nodiscard]] std::vector<Conversion> paper_conversions(bool causal);

[[nodiscard]] ConversionResult convert(const ConversionPlan& plan,
                                       const std::vector<Conversion>& conversions,
                                       int num_seeds,
                                       const StudyOptions& options);

// Settings, rows and curves; no claims.
[[nodiscard]] StudyResult study_of(const ConversionPlan& plan,
                                   const std::vector<Conversion>& conversions,
                                   const ConversionResult& result,
                                   const StudyOptions& options);

}  // namespace hedgerow::worker::laboratory
