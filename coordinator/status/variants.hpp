// The students that a run's transfer trained beside one another, those of the recipe's own
// attention and of [[variants]], as its tasks' results have them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/status/status.hpp"

namespace hedgerow::coordinator {

// Of a variant's seeds.
struct Spread {
  double median = 0.0, least = 0.0, most = 0.0;
  int count = 0;  // 0: nothing was measured
};

struct VariantFigures {
  std::string name;  // storage::kOwnStudent: the recipe's own
  int seeds = 1;
  Spread relative_mse;  // of the best validation, mean over the layers that were trained
  // By text, that of the validation split first (storage::kValidation): the share of the loss
  // between the untrained control and the teacher, and the KL divergence beyond the control's window.
  std::vector<std::pair<std::string, Spread>> gap_closed, kl;
  Spread mean_kl;  // over the texts: what variants are sorted by
  // The same of what costs no training: the variant's window and sinks alone, and a window that
  // takes the bytes of its state. Nullopt: not evaluated, or it has no window.
  std::optional<double> control_kl, window_kl;
  // Of the layers of all its seeds those whose best validation was behind window and sinks alone,
  // which they were exported as: such a variant's map says nothing.
  int kept_untrained = 0, layers = 0;
  Spread seconds_per_step;       // of a layer, without the teacher, on a processor
  std::int64_t state_bytes = 0;  // of a sequence at the evaluation's length; 0: not evaluated
  bool is_on_front = false;      // no other has a smaller KL with as few bytes, or fewer
};

// Sorted by KL, which even a few layers among many move clearly where the loss hardly does;
// without an evaluation by their error. Empty: the run has no variants, or no layer of them is
// trained yet.
[[nodiscard]] std::vector<VariantFigures> variants_of(const RunStatus& status);
[[nodiscard]] nlohmann::json to_json(const std::vector<VariantFigures>& variants);

}  // namespace hedgerow::coordinator
