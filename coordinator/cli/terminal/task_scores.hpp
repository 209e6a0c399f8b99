// What `hedgerow evaluate --tasks` found, as it is kept in a run (RunLayout::task_scores) and shown
// by evaluate, status, the report and the export's card: {"lm_eval", "tasks": {NAME: {"samples",
// "version", "shots", "seed", "text_hash", "subjects": {NAME: {"metrics": {NAME: {"value",
// "stderr"}}, "by_depth", "by_length"}}}}}.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "storage/base/run_layout.hpp"

namespace hedgerow::coordinator::cli {

// The subjects in their order: those that cost nothing between the teacher and the student.
inline constexpr std::array<const char*, 5> kTaskSubjects{
    "teacher", "control", "equal_window", "transfer", "lora"};

// Empty where no task has been evaluated. Throws kCorrupt for a file that is none.
[[nodiscard]] nlohmann::json read_task_scores(const storage::RunLayout& layout);
// Puts the tasks of `found` in place of earlier ones of their names, and keeps the others.
void record_task_scores(const storage::RunLayout& layout, const nlohmann::json& found);

// A table: a task and metric a row, a subject a column, each with its standard error.
[[nodiscard]] std::vector<std::string> task_score_lines(const nlohmann::json& scores, int width);
// In a sentence a task: where the student is not above the untrained window of its bytes.
[[nodiscard]] std::vector<std::string> task_verdicts(const nlohmann::json& scores);

}  // namespace hedgerow::coordinator::cli
