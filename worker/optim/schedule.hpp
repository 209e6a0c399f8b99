// When the learning rate drops and when a layer stops, decided by its validation losses alone.
// Plain values: they stand in checkpoints as they are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::worker {

// torch's ReduceLROnPlateau, mode min, relative threshold 1e-4, stepped at each validation.
struct Plateau {
  double best = std::numeric_limits<double>::max();
  int num_bad = 0;

  // The learning rate after this validation.
  double update(double loss, double learning_rate, const storage::TransferSection& transfer) {
    constexpr double kThreshold = 1e-4;
    if (loss < best * (1.0 - kThreshold)) {
      best = loss;
      num_bad = 0;
    } else if (++num_bad > transfer.plateau_patience) {
      num_bad = 0;
      return std::max(learning_rate * transfer.plateau_factor, transfer.min_learning_rate);
    }
    return learning_rate;
  }
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(Plateau, best, num_bad)
};

// From learning_rate to min_learning_rate along half a cosine over the planned steps: the rate of
// the step that follows `num_steps` others.
[[nodiscard]] inline double cosine_rate(std::int64_t num_steps,
                                        const storage::TransferSection& transfer) {
  constexpr double kPi = 3.14159265358979323846;
  const double done = std::min(1.0, static_cast<double>(num_steps) / transfer.max_steps);
  return transfer.min_learning_rate +
         (transfer.learning_rate - transfer.min_learning_rate) * 0.5 * (1.0 + std::cos(kPi * done));
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
