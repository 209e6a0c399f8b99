// A study: one paper's experiment at a size that runs here, with the paper's figure beside ours.
// All studies stand in one table (studies/all.cpp), one file each. A study trains, times or
// evaluates what its paper did and says of each claim what came out; it never looks at a claim
// before its settings are fixed.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "worker/laboratory/training.hpp"

namespace hedgerow::worker::laboratory {

struct StudyOptions {
  int num_seeds = 0;    // 0: as many as the study's own
  int num_threads = 1;  // trials at once, a core each
  std::string text;     // a text file, of the studies that train on one
  // Of `encoder`: the directory of a BERT in place of one that is trained here, and the text as its
  // tokens (encoder.cpp); empty: none.
  std::string model, tokens;
  std::vector<std::string> only;  // of `recall`: these attentions beside softmax; empty: all
  std::function<void(double share, const std::string& note)> progress;
  std::function<void(const nlohmann::json& row)> on_row;  // a row of the table as it comes
};

enum class Verdict { kReproduced, kNot, kUndecided };

struct Claim {
  std::string claim, paper, ours;
  Verdict verdict = Verdict::kUndecided;
  std::size_t num_seeds = 1;
};

struct StudyResult {
  nlohmann::json settings;               // what was run, so that it can be run again
  std::vector<nlohmann::json> rows;      // the table
  nlohmann::json curves;                 // name -> list of {seed, points: [[step, score], ..]}
  std::string curve_title, score_title;  // of the picture
  std::vector<Claim> claims;
};

struct Study {
  const char* name;
  const char* paper;
  const char* shows;              // one line
  nlohmann::json (*published)();  // the paper's settings, which are not run here; null: not built
  StudyResult (*run)(const StudyOptions&);
};

[[nodiscard]] std::span<const Study> all_studies();  // in the order of the papers
// Throws kUsage naming the studies that there are, or that this one is not built.
[[nodiscard]] const Study& find_study(const std::string& name);

// Of a claim that holds or not in each seed: all, none, or some of them.
[[nodiscard]] Verdict verdict_of(const std::vector<bool>& holds);
[[nodiscard]] Claim claim_of(std::string claim,
                             std::string paper,
                             std::string ours,
                             const std::vector<bool>& holds);
// That the first of two is lower: reproduced where its highest seed is below the other's lowest,
// not where its lowest is above or at the other's highest, undecided where the ranges overlap or
// where there is one seed.
[[nodiscard]] Claim order_claim(std::string claim,
                                std::string paper,
                                std::string ours,
                                const std::vector<double>& lower,
                                const std::vector<double>& higher);
[[nodiscard]] nlohmann::json to_json(const Study& study, const StudyResult& result);

// Models to train, each over all seeds.
struct TrialPlan {
  TransformerOptions model;
  TrainingOptions training;
};

struct TrialResult {
  std::vector<Trial> seeds;
  std::vector<double> entropies;  // of the attention, on `ids`; empty without them
  [[nodiscard]] std::vector<double> final_scores() const;
};

// Runs all plans and seeds, options.num_threads at once, each with one thread of ATen. The name of
// a plan is its attention's. `ids` [B, T]: what entropies are measured on.
[[nodiscard]] std::vector<TrialResult> run_trials(
    const std::vector<TrialPlan>& plans,
    const TrainingTask& task,
    int num_seeds,
    const at::Tensor& ids,
    const StudyOptions& options,
    const std::function<void(std::size_t plan, const TrialResult&)>& on_done = {});

// Runs job 0 to num_jobs - 1, so many at once, each with one thread of ATen; the first that throws
// stops those that have not begun, and its exception is thrown here.
void in_threads(std::size_t num_jobs,
                int num_threads,
                const std::function<void(std::size_t job)>& job);

// One trial of a picture's curves.
[[nodiscard]] nlohmann::json curve_of(std::size_t seed, const Trial& trial);
[[nodiscard]] nlohmann::json curves_of(const std::vector<TrialPlan>& plans,
                                       const std::vector<TrialResult>& results);

[[nodiscard]] double mean(const std::vector<double>& values);
// Spearman's rank correlation, ties at their mean rank.
[[nodiscard]] double rank_correlation(const std::vector<double>& a, const std::vector<double>& b);
[[nodiscard]] std::string percent(double share);  // "97.2 %"

}  // namespace hedgerow::worker::laboratory
