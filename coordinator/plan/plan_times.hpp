// How long a run will take: what its stages compute at the speed that is assumed of this kind of
// processor, and what processes take to start, which is most of a small job. Nothing here was
// measured on the machine at hand, and `hedgerow plan` says so. What is counted stands in
// coordinator/README.md "What a plan counts".
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/plan/plan.hpp"

namespace hedgerow::coordinator {

class Costs;

// Of every stage but the making of tokens. Seconds are 0 where the speed is not known.
[[nodiscard]] std::vector<StageEstimate> estimate_times(const Plan& plan,
                                                        const Costs& costs,
                                                        const storage::Recipe& recipe,
                                                        const PlanTokens& tokens,
                                                        const PlanLimits& limits);

// As many shards a task as make about a minute of work, but pieces enough for every local worker.
[[nodiscard]] int shards_per_capture(const Plan& plan,
                                     const Costs& costs,
                                     const storage::Recipe& recipe,
                                     const PlanTokens& tokens,
                                     const PlanLimits& limits);

// Of one stage's text, with Python's start.
[[nodiscard]] double tokenizing_seconds(std::uint64_t text_bytes);

}  // namespace hedgerow::coordinator
