// run.toml held against the recipe that the journal recorded. The journal's text counts, because
// its records are chained: one changed bit of run.toml would have a layer learn at two rates. The
// commands, status and run() ask here.
#pragma once

#include <optional>
#include <string>

#include "coordinator/state/state.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator {

// What is wrong with run.toml: names the file, each field with both values, and what to do.
// nullopt: it is the recorded recipe, or the one before a change that was not written to the end,
// or none is recorded yet.
[[nodiscard]] std::optional<std::string> recipe_problem(const storage::RunLayout& layout,
                                                        const State& state);

// The recipe that the run works with. Throws kCorrupt with recipe_problem(); where none is
// recorded, as Recipe::load_of_run.
[[nodiscard]] storage::Recipe recipe_of_run(const storage::RunLayout& layout, const State& state);
// The same by the hash in run.toml alone; the journal is read only to name what is damaged.
[[nodiscard]] storage::Recipe recipe_of_run(const storage::RunLayout& layout);
// The journal's recipe, whatever became of run.toml; nullopt where the journal has none.
[[nodiscard]] std::optional<storage::Recipe> recorded_recipe(const storage::RunLayout& layout,
                                                             const State& state);

// Whether `text` is what run.toml held, by the journal's hash of it, or by the one in the file's
// first line where the journal has none. Needs a journal.
[[nodiscard]] bool was_run_toml(const std::string& text,
                                const storage::RunLayout& layout,
                                const State& state);

// Makes run.toml the recorded text, if it is another and one is recorded. True: it was another.
bool put_back_recipe(const storage::RunLayout& layout, const State& state);

}  // namespace hedgerow::coordinator
