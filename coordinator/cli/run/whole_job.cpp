#include "coordinator/cli/run/whole_job.hpp"

#include <filesystem>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/run/planning.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {

storage::Recipe whole_job(const storage::Recipe& study,
                          const std::string& variant,
                          const std::string& run) {
  std::string names = storage::kOwnStudent;
  const storage::Variant* chosen = nullptr;
  for (const storage::Variant& each : study.variants) {
    names += ", " + each.name;
    if (each.name == variant) chosen = &each;
  }
  require(chosen != nullptr || variant == storage::kOwnStudent,
          "--variant " + variant + ": " + run + " has " + names);
  storage::Recipe recipe = chosen != nullptr ? study.of(*chosen) : study;
  recipe.variants.clear();
  recipe.made_by = {};
  const storage::TransferSection defaults;
  recipe.transfer.softmax_layers = {};
  recipe.transfer.max_steps = defaults.max_steps;
  recipe.transfer.validate_every = defaults.validate_every;
  recipe.evaluate.max_sequences = 0;
  recipe.finetune.enabled = true;
  recipe.plan.layers_per_block = 0;
  return recipe;
}

std::optional<WholeJob> planned_whole_job(const storage::RunLayout& study,
                                          const storage::Recipe& recipe,
                                          const std::string& variant) {
  try {
    storage::Recipe whole = whole_job(recipe, variant, study.root().string());
    const std::string cluster =
        std::filesystem::exists(study.cluster()) ? study.cluster().string() : "";
    // Where no run is, so that nothing of the study's counts as done.
    PlanFor planned = plan_for(whole, study.root() / ("whole-" + variant), cluster);
    planned.before_download = true;
    resolve(whole, planned);
    const Plan plan = plan_of(whole, planned);
    return WholeJob{plan.seconds(), plan.gpu_hours(), plan.cost()};
  } catch (const storage::Error&) {
    return std::nullopt;
  }
}

}  // namespace hedgerow::coordinator::cli
