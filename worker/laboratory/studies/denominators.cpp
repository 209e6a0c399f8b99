// 004 figure 2 and parts of 4 and 6: what may stand in for softmax's denominator. Its code clamps
// the exponent at 5 wherever no denominator takes the row's maximum away; so do these.
#include <cmath>

#include "worker/laboratory/studies/language_runs.hpp"
#include "worker/laboratory/studies/studies.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr double kClamp = 5;
constexpr double kNormClose = 0.02;                 // of softmax's loss, a share
constexpr double kGateClose = 0.10, kWorse = 0.05;  // above it, in nats

ScoreSpec open_score(const char* name, Denominator denominator, OutputNorm norm) {
  ScoreSpec spec;
  spec.name = name;
  spec.denominator = denominator;
  spec.norm = norm;
  spec.clamp = kClamp;
  return spec;
}

std::vector<LanguageRun> denominator_runs() {
  std::vector<LanguageRun> all{{ScoreSpec{}}};
  all.push_back({open_score("l2", Denominator::kNone, OutputNorm::kL2)});
  all.push_back({open_score("rms", Denominator::kNone, OutputNorm::kRms)});
  all.push_back({open_score("layer", Denominator::kNone, OutputNorm::kLayer)});
  all.push_back({open_score("l2_length", Denominator::kLength, OutputNorm::kL2)});
  all.push_back({open_score("detached", Denominator::kDetachedSum, OutputNorm::kNone)});
  all.push_back({open_score("length", Denominator::kLength, OutputNorm::kNone)});
  ScoreSpec out = open_score("length_out_gate", Denominator::kLength, OutputNorm::kNone);
  out.output_gate = true;
  all.push_back({out});
  ScoreSpec relu = open_score("relu_l2", Denominator::kNone, OutputNorm::kL2);
  relu.score = Score::kProduct;
  relu.map = Map::kRelu;
  relu.clamp = 0;
  all.push_back({relu});
  return all;
}

}  // namespace

nlohmann::json published_denominators() { return published_language(); }

StudyResult run_denominators(const StudyOptions& options) {
  const std::vector<LanguageRun> all = denominator_runs();
  LanguageRuns done = run_language(all, options);
  done.study.curve_title = "what stands in for softmax's denominator";
  for (std::size_t i = 1; i < all.size(); ++i) {
    const std::string& name = all[i].attention.name;
    const std::vector<double> above = done.above_first(i);
    std::vector<bool> holds;
    const bool is_normed = name == "l2" || name == "rms" || name == "layer" || name == "l2_length";
    const bool is_gated = all[i].attention.output_gate;
    if (name == "length") continue;  // "close but unstable": no claim of a number
    for (std::size_t s = 0; s < above.size(); ++s) {
      const double softmax = done.results.front().seeds[s].final_score();
      holds.push_back(is_normed  ? std::abs(above[s]) <= kNormClose * softmax
                      : is_gated ? above[s] <= kGateClose
                                 : above[s] >= kWorse);
    }
    done.study.claims.push_back(
        claim_of(name + (is_normed  ? " is within 2 % of softmax's loss"
                         : is_gated ? " is at most 0.10 nats above softmax"
                                    : " is at least 0.05 nats above softmax"),
                 is_normed  ? "the same curve"
                 : is_gated ? "slightly worse"
                            : "much worse",
                 nats(above),
                 holds));
  }
  return done.study;
}

}  // namespace hedgerow::worker::laboratory
