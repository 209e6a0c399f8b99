// What `hedgerow evaluate --tasks` found, as a run keeps it (RunLayout::task_scores): {"lm_eval",
// "tasks": {NAME: {"samples", "version", "shots", "seed", "text_hash", "subjects": {NAME:
// {"metrics": {NAME: {"value", "stderr"}}, "by_depth", "by_length"}}}}}.
#pragma once

#include <nlohmann/json.hpp>

#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

// An empty object where no task has been evaluated. Throws kCorrupt for a file that is none.
[[nodiscard]] nlohmann::json read_task_scores(const storage::RunLayout& layout);
// Puts the tasks of `found` in place of earlier ones of their names, and keeps the others.
void record_task_scores(const storage::RunLayout& layout, const nlohmann::json& found);

}  // namespace hedgerow::coordinator
