// Where exactness matters: what each layer's, or each key/value head's, return to softmax gives a
// student, measured by `evaluate --returns` and taken by `init --softmax-layers kl:N`.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator::cli {

// Runs the worker's evaluation with --returns `by`, shows the ten that give most, and keeps the
// answer in the run (RunLayout::returns) where there is one: {"student": {kl, loss, texts},
// "returns": [{layer, head, and the same}]}, of all positions.
[[nodiscard]] storage::ExitCode evaluate_returns(ChildCommand command,
                                                 const std::string& by,
                                                 const std::string& run,
                                                 Terminal& terminal);

// The `count` layers whose return brings the student's KL down most, the mean over the texts, in
// growing order. Throws kUsage where the run has not measured its layers, or has fewer.
[[nodiscard]] std::vector<int> layers_that_matter(const storage::RunLayout& layout, int count);

}  // namespace hedgerow::coordinator::cli
