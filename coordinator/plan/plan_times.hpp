// How long a run will take, and what that costs: what its stages compute at the speed that was
// measured of its workers or is assumed of their kind, what goes through the shared file system and
// between ranks, and what processes take to start, which is most of a small job. What is counted
// stands in coordinator/README.md "What a plan counts".
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/plan/plan.hpp"
#include "coordinator/state/task_id.hpp"

namespace hedgerow::coordinator {

class Costs;

// Estimates of every stage but the making of tokens. Seconds are 0 where no speed is known.
[[nodiscard]] std::vector<StageEstimate> estimate_times(const Plan& plan,
                                                        const Costs& costs,
                                                        const storage::Recipe& recipe,
                                                        const PlanTokens& tokens,
                                                        const PlanLimits& limits);

// As many shards a task as make about a minute of work, but pieces enough for every worker.
[[nodiscard]] int shards_per_capture(const Plan& plan,
                                     const Costs& costs,
                                     const storage::Recipe& recipe,
                                     const PlanTokens& tokens,
                                     const PlanLimits& limits);

// Geometry::num_evaluate_pieces: as many pieces of each evaluated subject as shorten the
// evaluations on these workers.
[[nodiscard]] int evaluate_pieces(const Plan& plan,
                                  const Costs& costs,
                                  const storage::Recipe& recipe,
                                  const PlanTokens& tokens,
                                  const PlanLimits& limits);

// Seconds of one task of a stage on one worker of limits.workers[kind], with what it loads and its
// grant; of finetune, the whole stage. For `hedgerow plan --simulate`.
[[nodiscard]] double task_seconds(const Plan& plan,
                                  const Costs& costs,
                                  const storage::Recipe& recipe,
                                  const PlanTokens& tokens,
                                  const PlanLimits& limits,
                                  const TaskId& task,
                                  std::size_t kind);

// Seconds for one stage's text, with Python's start.
[[nodiscard]] double tokenizing_seconds(std::uint64_t text_bytes);

}  // namespace hedgerow::coordinator
