// 000 table 1: a language model trained from random weights with each attention. The order is the
// paper's claim, and how much of the way from 1 + ELU to softmax Hedgehog goes. The setting is that
// of the studies of 004 (language_runs), chosen by softmax and by order 0.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "worker/laboratory/studies/language_runs.hpp"
#include "worker/laboratory/studies/studies.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr std::int64_t kPerformerFeatures = 64;
constexpr double kPaperGap = (25.6 - 20.8) / (25.6 - 18.6);  // 000 prints 68.6 %
constexpr double kHalf = 0.5;
constexpr std::size_t kSoftmaxRun = 0, kHedgehogRun = 1, kEluRun = 2, kPerformerRun = 3;

ScoreSpec map_product(const char* name, Map map) {
  return {.name = name, .score = Score::kProduct, .map = map};
}

// "8.12 (8.01 to 8.20)" of perplexities.
std::string perplexities(const std::vector<double>& values) {
  std::array<char, 96> text{};
  const auto [least, most] = std::ranges::minmax(values);
  std::snprintf(text.data(), text.size(), "%.2f (%.2f to %.2f)", mean(values), least, most);
  return text.data();
}

}  // namespace

nlohmann::json published_from_scratch() {
  return {
      {"text", "WikiText-103"},
      {"parameters", 125000000},
      {"length", 1024},
      {"learning_rate", 6e-4},
      {"weight_decay", 0.01},
      {"perplexity", {{"softmax", 18.6}, {"hedgehog", 20.8}, {"elu", 25.6}, {"performer", 26.8}}}};
}

StudyResult run_from_scratch(const StudyOptions& options) {
  ScoreSpec performer = map_product("performer", Map::kFavor);
  performer.num_features = kPerformerFeatures;
  performer.orthogonal = true;
  LanguageRuns done = run_language({{ScoreSpec{}},
                                    {map_product("hedgehog", Map::kHedgehog)},
                                    {map_product("elu", Map::kEluPlusOne)},
                                    {performer},
                                    {map_product("relu", Map::kRelu)}},
                                   options);
  StudyResult& study = done.study;
  study.curve_title = "language models trained from scratch";
  std::vector<std::vector<double>> found;  // perplexity a byte, of each run and seed
  for (const TrialResult& result : done.results) {
    found.emplace_back();
    for (const double loss : result.final_scores()) found.back().push_back(std::exp(loss));
  }
  std::vector<double> shares, others_best;
  std::vector<bool> closes_half;
  for (std::size_t s = 0; s < found.front().size(); ++s) {
    const double elu = found[kEluRun][s];
    shares.push_back((elu - found[kHedgehogRun][s]) / (elu - found[kSoftmaxRun][s]));
    closes_half.push_back(shares.back() >= kHalf);
    others_best.push_back(found[1][s]);
    for (std::size_t run = 2; run < found.size(); ++run)
      others_best.back() = std::min(others_best.back(), found[run][s]);
  }
  const std::string softmax = perplexities(found[kSoftmaxRun]),
                    hedgehog = perplexities(found[kHedgehogRun]),
                    elu = perplexities(found[kEluRun]);
  study.claims = {order_claim("softmax has the lowest perplexity",
                              "18.6; next 20.8",
                              softmax + "; next " + perplexities(others_best),
                              found[kSoftmaxRun],
                              others_best),
                  order_claim("Hedgehog is behind softmax",
                              "20.8 over 18.6",
                              hedgehog + " over " + softmax,
                              found[kSoftmaxRun],
                              found[kHedgehogRun]),
                  order_claim("Hedgehog is before 1 + ELU",
                              "20.8 under 25.6",
                              hedgehog + " under " + elu,
                              found[kHedgehogRun],
                              found[kEluRun]),
                  order_claim("1 + ELU is before Performer",
                              "25.6 under 26.8",
                              elu + " under " + perplexities(found[kPerformerRun]),
                              found[kEluRun],
                              found[kPerformerRun]),
                  claim_of("Hedgehog closes half of the gap from 1 + ELU to softmax",
                           percent(kPaperGap),
                           percent(mean(shares)),
                           closes_half)};
  return done.study;
}

}  // namespace hedgerow::worker::laboratory
