// Whether each stage of a plan fits the memory of the workers that would compute it, and if not the
// smallest change that makes it fit.
#pragma once

#include "coordinator/plan/plan.hpp"

namespace hedgerow::coordinator {

// Adds to plan.problems; of `plan` it reads the blocks, the logits and which stages there are. With
// several kinds of nodes it is enough that one fits a stage; a kind that fits none is a problem.
void check_memory(const storage::Recipe& recipe,
                  const storage::ModelConfig& model,
                  const PlanTokens& tokens,
                  const PlanLimits& limits,
                  Plan& plan);

}  // namespace hedgerow::coordinator
