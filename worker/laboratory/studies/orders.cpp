// 004 figure 5: the series of e^s cut after an order, and the same of other maps. Odd orders may
// have sums of 0 and below, so the walk has even ones alone.
#include <cmath>

#include "worker/laboratory/studies/language_runs.hpp"
#include "worker/laboratory/studies/studies.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr double kOrderClose = 0.01;  // of softmax's loss, a share
constexpr double kApart = 0.02;       // above it, in nats
constexpr double kTells = 0.10;       // order 0 above it: the model can tell attentions apart

ScoreSpec series(const char* name, Map map, int order) {
  ScoreSpec spec;
  spec.name = name;
  spec.score = Score::kSeries;
  spec.map = map;
  spec.order = order;
  return spec;
}

std::vector<LanguageRun> order_runs() {
  return {{ScoreSpec{}},
          {series("order_0", Map::kIdentity, 0)},
          {series("order_2", Map::kIdentity, 2)},
          {series("order_4", Map::kIdentity, 4)},
          {series("order_10", Map::kIdentity, 10)},
          {series("relu_10", Map::kRelu, 10)},
          {series("cosine_10", Map::kCosine, 10)}};
}

}  // namespace

nlohmann::json published_orders() { return published_language(); }

StudyResult run_orders(const StudyOptions& options) {
  LanguageRuns done = run_language(order_runs(), options);
  StudyResult& study = done.study;
  study.curve_title = "the series of e^s cut after an order";
  const std::size_t num_seeds = done.results.front().seeds.size();
  const auto loss = [&](std::size_t run, std::size_t s) {
    return done.results[run].seeds[s].final_score();
  };
  std::vector<bool> tells, falls, arrives, relu_stays, cosine_stays;
  const auto order0 = done.above_first(1), order10 = done.above_first(4),
             relu = done.above_first(5), cosine = done.above_first(6);
  for (std::size_t s = 0; s < num_seeds; ++s) {
    tells.push_back(order0[s] >= kTells);
    falls.push_back(loss(1, s) > loss(2, s) && loss(2, s) > loss(3, s) && loss(3, s) > loss(4, s));
    arrives.push_back(std::abs(order10[s]) <= kOrderClose * loss(0, s));
    relu_stays.push_back(relu[s] >= kApart);
    cosine_stays.push_back(cosine[s] >= kApart);
  }
  study.claims = {
      claim_of("order 0, all keys alike, is 0.10 nats above: the study can tell",
               "the highest curve",
               nats(order0),
               tells),
      claim_of("the loss falls from order 0 to 2, 4 and 10",
               "a smooth walk",
               "order 0 " + nats(order0) + ", 2 " + nats(done.above_first(2)) + ", 4 " +
                   nats(done.above_first(3)),
               falls),
      claim_of(
          "order 10 is within 1 % of softmax's loss", "the same curve", nats(order10), arrives),
      claim_of("ReLU of order 10 stays 0.02 nats above", "never arrives", nats(relu), relu_stays),
      claim_of(
          "cosine of order 10 stays 0.02 nats above", "gains nothing", nats(cosine), cosine_stays)};
  return study;
}

}  // namespace hedgerow::worker::laboratory
