#include "worker/laboratory/study.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {
namespace {

const char* to_word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kReproduced:
      return "reproduced";
    case Verdict::kNot:
      return "not";
    case Verdict::kUndecided:
      break;
  }
  return "undecided";
}

std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<double> result;
  for (const double value : values) {
    double less = 0, equal = 0;
    for (const double other : values) {
      less += other < value ? 1 : 0;
      equal += other == value ? 1 : 0;
    }
    result.push_back(less + (equal + 1) / 2);
  }
  return result;
}

}  // namespace

const Study& find_study(const std::string& name) {
  std::string names;
  for (const Study& study : all_studies()) {
    if (name == study.name && study.run == nullptr)
      throw storage::Error(
          storage::ErrorKind::kUsage,
          "study '" + name + "' is not built yet; 'hedgerow lab list' says which are");
    if (name == study.name) return study;
    names += (names.empty() ? "" : ", ") + std::string(study.name);
  }
  throw storage::Error(storage::ErrorKind::kUsage,
                       "study '" + name + "' is unknown; there are " + names);
}

Verdict verdict_of(const std::vector<bool>& holds) {
  const auto count = static_cast<std::size_t>(std::ranges::count(holds, true));
  if (holds.empty()) return Verdict::kUndecided;
  if (count == holds.size()) return Verdict::kReproduced;
  return count == 0 ? Verdict::kNot : Verdict::kUndecided;
}

Claim claim_of(std::string claim,
               std::string paper,
               std::string ours,
               const std::vector<bool>& holds) {
  return {.claim = std::move(claim),
          .paper = std::move(paper),
          .ours = std::move(ours),
          .verdict = verdict_of(holds),
          .num_seeds = holds.size()};
}

Claim order_claim(std::string claim,
                  std::string paper,
                  std::string ours,
                  const std::vector<double>& lower,
                  const std::vector<double>& higher) {
  Claim result{.claim = std::move(claim),
               .paper = std::move(paper),
               .ours = std::move(ours),
               .verdict = Verdict::kUndecided,
               .num_seeds = lower.size()};
  if (lower.size() < 2 || higher.size() < 2) return result;  // without a spread no order is found
  if (std::ranges::max(lower) < std::ranges::min(higher)) result.verdict = Verdict::kReproduced;
  if (std::ranges::min(lower) >= std::ranges::max(higher)) result.verdict = Verdict::kNot;
  return result;
}

nlohmann::json to_json(const Study& study, const StudyResult& result) {
  nlohmann::json claims = nlohmann::json::array();
  for (const Claim& claim : result.claims)
    claims.push_back({{"claim", claim.claim},
                      {"paper", claim.paper},
                      {"ours", claim.ours},
                      {"verdict", to_word(claim.verdict)},
                      {"seeds", claim.num_seeds}});
  return {{"study", study.name},
          {"paper", study.paper},
          {"settings", result.settings},
          {"rows", result.rows},
          {"curves", result.curves},
          {"curve_title", result.curve_title},
          {"score_title", result.score_title},
          {"claims", claims}};
}

std::vector<double> TrialResult::final_scores() const {
  std::vector<double> scores;
  for (const Trial& trial : seeds) scores.push_back(trial.final_score());
  return scores;
}

std::vector<TrialResult> run_trials(
    const std::vector<TrialPlan>& plans,
    const TrainingTask& task,
    int num_seeds,
    const at::Tensor& ids,
    const StudyOptions& options,
    const std::function<void(std::size_t plan, const TrialResult&)>& on_done) {
  for (const TrialPlan& plan : plans) plan.model.validate();
  const auto seeds = static_cast<std::size_t>(num_seeds);
  const std::size_t num_trials = plans.size() * seeds;
  std::vector<TrialResult> results(plans.size());
  for (TrialResult& result : results) {
    result.seeds.resize(seeds);
    if (ids.defined()) result.entropies.resize(seeds);
  }
  std::vector<double> shares(num_trials, 0.0);
  std::vector<std::size_t> num_done(plans.size(), 0);
  std::mutex mutex;  // of all below that threads write, and of the callbacks
  const auto report = [&](std::size_t trial, double share, const std::string& name) {
    const std::lock_guard lock(mutex);
    shares[trial] = share;
    if (options.progress)
      options.progress(
          std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(num_trials),
          name);
    return true;
  };
  const auto run_one = [&](std::size_t trial) {
    const std::size_t p = trial / seeds, s = trial % seeds;
    TrialPlan plan = plans[p];
    plan.model.seed += s;
    plan.training.seed += 1000 + s;
    const Transformer model(plan.model);
    const std::string& name = plan.model.attention.name;
    results[p].seeds[s] =
        train(model, task, plan.training, [&](double share) { return report(trial, share, name); });
    if (ids.defined()) results[p].entropies[s] = model.entropy(ids);
    report(trial, 1.0, name);
    const std::lock_guard lock(mutex);
    if (++num_done[p] == seeds && on_done) on_done(p, results[p]);
  };
  in_threads(num_trials, options.num_threads, run_one);
  return results;
}

void in_threads(std::size_t num_jobs,
                int num_threads,
                const std::function<void(std::size_t job)>& job) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    at::set_num_threads(1);
    try {
      for (std::size_t j = next++; j < num_jobs; j = next++) job(j);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = num_jobs;
    }
  };
  {
    std::vector<std::jthread> threads;
    const auto wanted = static_cast<std::size_t>(std::max(1, num_threads));
    for (std::size_t i = 0; i < std::min(num_jobs, wanted); ++i) threads.emplace_back(work);
  }
  if (failure) std::rethrow_exception(failure);
}

nlohmann::json curve_of(std::size_t seed, const Trial& trial) {
  nlohmann::json points = nlohmann::json::array();
  for (const CurvePoint& point : trial.curve) points.push_back({point.step, point.score});
  return {{"seed", seed},
          {"points", points},
          {"is_finite", trial.is_finite},
          {"seconds", trial.seconds}};
}

nlohmann::json curves_of(const std::vector<TrialPlan>& plans,
                         const std::vector<TrialResult>& results) {
  nlohmann::json curves = nlohmann::json::object();
  for (std::size_t p = 0; p < plans.size(); ++p) {
    nlohmann::json& named = curves[plans[p].model.attention.name] = nlohmann::json::array();
    for (std::size_t s = 0; s < results[p].seeds.size(); ++s)
      named.push_back(curve_of(s, results[p].seeds[s]));
  }
  return curves;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mx = mean(x), my = mean(y);
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mx) * (y[i] - my);
    xx += (x[i] - mx) * (x[i] - mx);
    yy += (y[i] - my) * (y[i] - my);
  }
  return xx * yy > 0 ? xy / std::sqrt(xx * yy) : 0.0;
}

std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

}  // namespace hedgerow::worker::laboratory
