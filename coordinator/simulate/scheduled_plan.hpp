// A plan's times as the production scheduler spends them, without failures: pieces of unequal size,
// boundaries that wait for each other, transfers that begin while captures go on.
#pragma once

#include <memory>

#include "coordinator/plan/plan_costs.hpp"
#include "coordinator/plan/planner.hpp"
#include "coordinator/simulate/simulation.hpp"

namespace hedgerow::coordinator {

// What the times of a recipe's plans follow from. Outlives whatever is made of it.
struct PlanSubject {
  const storage::ModelConfig& model;
  const PlanTokens& tokens;
  const PlanLimits& limits;
};

// The plan as the input of a simulation, nodes failing at the rate of their kind. `plan` and the
// subject outlive it. Throws kUsage where no speed is known.
[[nodiscard]] SimulationInput simulation_of(const Plan& plan,
                                            const storage::Recipe& recipe,
                                            const PlanSubject& subject);

// Puts into plan.estimates how long one of each stage's tasks is granted, and plan.overlap_seconds
// in which two stages go on. Leaves a plan as it is that no speed is known of, that a simulation
// does not end, or that has more than 500,000 shards.
void schedule_stages(Plan& plan, const storage::Recipe& recipe, const PlanSubject& subject);

// The same for each k that is compared.
[[nodiscard]] PlanTimer scheduling(const PlanSubject& subject);

}  // namespace hedgerow::coordinator
