// Scores of tasks (coordinator/status/task_scores.hpp) as evaluate, status and the export's card
// show them.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hedgerow::coordinator::cli {

// The subjects in their order: those that cost nothing between the teacher and the student.
inline constexpr std::array<const char*, 5> kTaskSubjects{
    "teacher", "control", "equal_window", "transfer", "lora"};

// A table: a task and metric a row, a subject a column, each with its standard error.
[[nodiscard]] std::vector<std::string> task_score_lines(const nlohmann::json& scores, int width);
// The same as rows of Markdown; empty: there are none.
[[nodiscard]] std::string task_score_markdown(const nlohmann::json& scores);
// In a sentence a task: where the student is not above the untrained window of its bytes.
[[nodiscard]] std::vector<std::string> task_verdicts(const nlohmann::json& scores);

}  // namespace hedgerow::coordinator::cli
