// Makes a plan (plan.hpp) of a recipe, and chooses what the recipe leaves to it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/plan/plan.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

// Throws kUsage for a recipe that contradicts model or data (no training sequence, seq_len beyond
// the model's positions, a softmax layer that does not exist). What merely does not fit is reported
// in `problems`.
// `mesh`: of a plan of the same but for k and boundaries, on which it does not depend; null: it is
// chosen.
[[nodiscard]] Plan make_plan(const storage::Recipe& recipe,
                             const storage::ModelConfig& model,
                             const PlanTokens& tokens,
                             const PlanLimits& limits,
                             const MeshPlan* mesh = nullptr);

// Opens the recipe's tokens files in a run for their counts. Missing files give zeros.
[[nodiscard]] PlanTokens read_plan_tokens(const storage::RunLayout& layout,
                                          const storage::Recipe& recipe,
                                          int vocab_size);
// What another k comes to, with the boundaries kept that the recipe says.
struct KChoice {
  int layers_per_block = 1, num_blocks = 1;
  std::uint64_t memory_bytes = 0;  // of a worker: the larger of capture and transfer
  std::uint64_t peak_disk_bytes = 0;
  double seconds = 0.0, gpu_hours = 0.0, cost = 0.0;  // of the whole run
  int num_problems = 0;                               // 0: it fits
};
// Makes the times of a plan better than make_plan() knows them (simulate/scheduled_plan.hpp).
using PlanTimer = std::function<void(Plan& plan, const storage::Recipe& recipe)>;

// The smallest k of each number of blocks, up to the first that does not fit a worker.
[[nodiscard]] std::vector<KChoice> compare_k(const storage::Recipe& recipe,
                                             const storage::ModelConfig& model,
                                             const PlanTokens& tokens,
                                             const PlanLimits& limits,
                                             const PlanTimer& timer = {});

// Decides what the recipe leaves to the plan. layers_per_block = 0: of those that fit, the one
// whose run ends first, and of those within 2 % of it the largest, which stores least.
// keep_boundaries = "auto": all of them where the disk has the room, else the last, else none.
void choose(storage::Recipe& recipe,
            const storage::ModelConfig& model,
            const PlanTokens& tokens,
            const PlanLimits& limits,
            const PlanTimer& timer = {});

}  // namespace hedgerow::coordinator
