// A recipe, its model and its data brought together: what `plan`, `doctor` and `run` share before a
// run starts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "coordinator/plan/plan.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

// What "auto" and 0 mean on this machine is decided once and written into the run, because results
// depend on it: plan.compute_dtype, and the threads of workers and ranks that run here.
void resolve_for_this_machine(storage::Recipe& recipe);

// Throws kUsage or kUnavailable for a device that the local workers cannot have, and kUsage naming
// a source that is missing or empty and whose tokens the run does not have yet. The plan of a run
// at `directory`, which need not exist yet. Where tokens files are missing, the number of sequences
// is what the recipe's step budget visits. What the run has stored there already is room that it
// need not find.
[[nodiscard]] Plan plan_of(const storage::Recipe& recipe, const std::filesystem::path& directory);

// The text of the transfer while nobody has tokenized it: what a plan rests on without having seen.
struct UnreadText {
  std::uint64_t bytes = 0;
  std::int64_t rough_sequences = 0;  // at four bytes a token
  // No more than a token a byte; none where a template or compression adds what the size hides.
  std::optional<std::int64_t> most_tokens;
};
// None once the run at `directory` has its tokens, or if they come as tokens files.
[[nodiscard]] std::optional<UnreadText> unread_text(const storage::Recipe& recipe,
                                                    const std::filesystem::path& directory);

// What the transfer lacks with a text that cannot even give its validation part and one sequence to
// train on, however it is tokenized.
[[nodiscard]] std::optional<PlanProblem> text_problem(const UnreadText& text,
                                                      const storage::DataSection& data);

}  // namespace hedgerow::coordinator::cli
