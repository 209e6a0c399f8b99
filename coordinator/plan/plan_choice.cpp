#include <algorithm>
#include <limits>

#include "coordinator/plan/plan_costs.hpp"
#include "coordinator/plan/planner.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::ModelConfig;
using storage::Recipe;

// The smallest k for each number of blocks: another k of as many blocks only makes them uneven.
std::vector<int> candidates(int num_layers) {
  std::vector<int> list;
  for (int blocks = num_layers; blocks >= 1; --blocks) {
    const int k = (num_layers + blocks - 1) / blocks;
    if (list.empty() || list.back() != k) list.push_back(k);
  }
  return list;
}

// Nothing but memory: not whether the disk has the room.
bool fits_a_worker(const Plan& plan) {
  const std::uint64_t need = std::max(plan.capture_memory_bytes, plan.transfer_memory_bytes);
  return plan.workers.empty() ||
         std::any_of(plan.workers.begin(), plan.workers.end(), [need](const WorkerKind& kind) {
           return kind.worker_memory_bytes() == 0 || need <= kind.worker_memory_bytes();
         });
}

}  // namespace

std::vector<KChoice> compare_k(const Recipe& recipe,
                               const ModelConfig& model,
                               const PlanTokens& tokens,
                               const PlanLimits& limits,
                               const PlanTimer& timer) {
  std::vector<KChoice> choices;
  std::optional<MeshPlan> mesh;  // the same for every k
  for (const int k : candidates(model.num_hidden_layers)) {
    Recipe changed = recipe;
    changed.plan.layers_per_block = k;
    Plan plan = make_plan(changed, model, tokens, limits, mesh ? &*mesh : nullptr);
    if (timer) timer(plan, changed);
    if (plan.finetunes) mesh = plan.mesh;
    choices.push_back({k,
                       plan.num_blocks(),
                       std::max(plan.capture_memory_bytes, plan.transfer_memory_bytes),
                       plan.peak_disk_bytes,
                       plan.seconds(),
                       plan.gpu_hours(),
                       plan.cost(),
                       static_cast<int>(plan.problems.size())});
    if (!fits_a_worker(plan)) break;
  }
  return choices;
}

void choose(Recipe& recipe,
            const ModelConfig& model,
            const PlanTokens& tokens,
            const PlanLimits& limits,
            const PlanTimer& timer) {
  constexpr double kAsFast = 1.001;  // then the larger k, which takes less disk
  const bool chooses_boundaries = recipe.plan.keep_boundaries == "auto";
  if (recipe.plan.layers_per_block == 0 && limits.workers.empty()) {
    recipe.plan.layers_per_block =
        std::min(storage::PlanSection{}.layers_per_block, model.num_hidden_layers);
  } else if (recipe.plan.layers_per_block == 0) {
    // Where only the fewest boundaries leave room, k is chosen for those.
    if (chooses_boundaries) recipe.plan.keep_boundaries = "none";
    const std::vector<KChoice> choices = compare_k(recipe, model, tokens, limits, timer);
    // No k is to blame for the last stage's problems.
    int fewest = choices.front().num_problems;
    for (const KChoice& choice : choices) fewest = std::min(fewest, choice.num_problems);
    double fastest = std::numeric_limits<double>::infinity();
    for (const KChoice& choice : choices) {
      if (choice.num_problems == fewest) fastest = std::min(fastest, choice.seconds);
    }
    int k = 1;
    for (const KChoice& choice : choices) {
      if (choice.num_problems == fewest && choice.seconds <= kAsFast * fastest)
        k = choice.layers_per_block;
    }
    recipe.plan.layers_per_block = k;
  }
  if (!chooses_boundaries) return;
  std::optional<MeshPlan> mesh;
  for (const char* keep : {"all", "last", "none"}) {
    recipe.plan.keep_boundaries = keep;
    const Plan plan = make_plan(recipe, model, tokens, limits, mesh ? &*mesh : nullptr);
    if (plan.fits()) return;
    if (plan.finetunes) mesh = plan.mesh;
  }
}

}  // namespace hedgerow::coordinator
