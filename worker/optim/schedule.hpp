// When the learning rate drops and when training stops, decided by the step and the validation
// losses alone; for a layer of the transfer and for the finetune. Plain values: they stand in
// checkpoints as they are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::worker {

// What a recipe's section says of the learning rate.
struct RateSettings {
  std::string schedule;  // constant | plateau | cosine | linear
  double learning_rate = 0.0;
  double min_learning_rate = 0.0;
  double plateau_factor = 0.1;
  int plateau_patience = 10;  // validations
  int max_steps = 1;
  int warmup_steps = 0;

  explicit RateSettings(const storage::TransferSection& transfer)
      : schedule(transfer.schedule),
        learning_rate(transfer.learning_rate),
        min_learning_rate(transfer.min_learning_rate),
        plateau_factor(transfer.plateau_factor),
        plateau_patience(transfer.plateau_patience),
        max_steps(transfer.max_steps) {}
  explicit RateSettings(const storage::FinetuneSection& finetune)
      : schedule(finetune.schedule),
        learning_rate(finetune.learning_rate),
        min_learning_rate(finetune.min_learning_rate),
        plateau_factor(finetune.plateau_factor),
        plateau_patience(finetune.plateau_patience),
        max_steps(finetune.max_steps),
        warmup_steps(finetune.warmup_steps) {}
};

// torch's ReduceLROnPlateau, mode min, relative threshold 1e-4, stepped at each validation.
struct Plateau {
  double best = std::numeric_limits<double>::max();
  int num_bad = 0;

  // The learning rate after this validation.
  double update(double loss, double learning_rate, const RateSettings& settings) {
    constexpr double kThreshold = 1e-4;
    if (loss < best * (1.0 - kThreshold)) {
      best = loss;
      num_bad = 0;
    } else if (++num_bad > settings.plateau_patience) {
      num_bad = 0;
      return std::max(learning_rate * settings.plateau_factor, settings.min_learning_rate);
    }
    return learning_rate;
  }
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(Plateau, best, num_bad)
};

// The rate of the step that follows `num_steps` others. First it rises linearly over the warmup.
// Then cosine and linear fall from learning_rate to min_learning_rate over the rest of max_steps;
// constant and plateau stay at `plateau_rate`, the rate after the last validation.
[[nodiscard]] inline double rate_after(std::int64_t num_steps,
                                       double plateau_rate,
                                       const RateSettings& settings) {
  const bool falls = settings.schedule == "cosine" || settings.schedule == "linear";
  if (num_steps < settings.warmup_steps) {
    return (falls ? settings.learning_rate : plateau_rate) * static_cast<double>(num_steps + 1) /
           settings.warmup_steps;
  }
  if (!falls) return plateau_rate;
  constexpr double kPi = 3.14159265358979323846;
  const double done = std::min(1.0,
                               static_cast<double>(num_steps - settings.warmup_steps) /
                                   (settings.max_steps - settings.warmup_steps));
  const double range = settings.learning_rate - settings.min_learning_rate;
  if (settings.schedule == "linear") return settings.min_learning_rate + range * (1.0 - done);
  return settings.min_learning_rate + range * 0.5 * (1.0 + std::cos(kPi * done));
}

// Remembers the best validation; says when `patience` validations in a row brought no better one
// (0: never).
struct Stopper {
  double best = std::numeric_limits<double>::max();
  std::int64_t best_step = -1;
  int num_without_improvement = 0;

  // True if this is the best one so far.
  bool update(double loss, std::int64_t step) {
    if (loss < best) {
      best = loss;
      best_step = step;
      num_without_improvement = 0;
      return true;
    }
    ++num_without_improvement;
    return false;
  }
  [[nodiscard]] bool should_stop(int patience) const {
    return patience > 0 && num_without_improvement >= patience;
  }
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(Stopper, best, best_step, num_without_improvement)
};

}  // namespace hedgerow::worker
