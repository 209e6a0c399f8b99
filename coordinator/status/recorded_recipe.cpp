#include "coordinator/status/recorded_recipe.hpp"

#include <filesystem>
#include <span>

#include "coordinator/state/fold.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/files/hash.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::Recipe;

// run.toml has a length that no recorded one has if it is longer.
constexpr std::uint64_t kMaxRunTomlBytes = 1 << 20;

std::string command(const char* words, const storage::RunLayout& layout) {
  return "'hedgerow " + std::string(words) + " --run " + layout.root().string() + "'";
}

// The fields in which `text` differs from the recorded recipe, or why it cannot be read.
std::string what_differs(const std::string& text,
                         const storage::RunLayout& layout,
                         const State& state) {
  try {
    const std::string name = layout.recipe().string();
    const storage::RecipeDifference changes = storage::difference(
        Recipe::parse(state.recipe.text, "the journal"), Recipe::parse(text, name));
    std::string fields;
    for (const auto* list : {&changes.unsafe, &changes.safe}) {
      for (const std::string& field : *list) fields += (fields.empty() ? "" : "; ") + field;
    }
    return fields.empty() ? ": no value differs, a comment or the layout does"
                          : " (recorded -> found): " + fields;
  } catch (const Error& error) {
    return ", and cannot be read: " + std::string(error.what());
  }
}

}  // namespace

std::optional<std::string> recipe_problem(const storage::RunLayout& layout, const State& state) {
  const RecordedRecipe& recorded = state.recipe;
  if (recorded.hash.empty()) return std::nullopt;
  const std::string file = layout.recipe().string();
  const std::string remedy =
      recorded.text.empty() ? "; the journal's record of its text is damaged too: " +
                                  command("run --recipe FILE", layout) +
                                  ", with the recipe that the run was last given, writes it again"
                            : "; " + command("check --repair", layout) + " puts it back";
  if (!std::filesystem::exists(layout.recipe())) return file + " is missing" + remedy;
  std::string text;
  try {
    text = storage::read_text(layout.recipe(), kMaxRunTomlBytes);
  } catch (const Error& error) {
    return error.what() + remedy;
  }
  const std::string hash = storage::hash128(std::as_bytes(std::span(text))).hex();
  if (hash == recorded.hash || hash == recorded.hash_before) return std::nullopt;
  if (recorded.text.empty())
    return file + ": hash " + hash + " != recorded " + recorded.hash + remedy;
  return file + " is not the recipe that the journal recorded" + what_differs(text, layout, state) +
         remedy + ", and a change is made by " + command("run --recipe FILE", layout);
}

std::optional<Recipe> recorded_recipe(const storage::RunLayout& layout, const State& state) {
  if (state.recipe.text.empty()) return std::nullopt;
  return Recipe::parse(state.recipe.text, layout.recipe().string());
}

Recipe recipe_of_run(const storage::RunLayout& layout, const State& state) {
  if (const auto problem = recipe_problem(layout, state))
    throw Error(ErrorKind::kCorrupt, *problem);
  if (auto recorded = recorded_recipe(layout, state)) return *std::move(recorded);
  return Recipe::load_of_run(layout.recipe());
}

bool was_run_toml(const std::string& text, const storage::RunLayout& layout, const State& state) {
  const RecordedRecipe& recorded = state.recipe;
  if (!recorded.hash.empty()) {
    const std::string hash = storage::hash128(std::as_bytes(std::span(text))).hex();
    return hash == recorded.hash || hash == recorded.hash_before;
  }
  // The first line of run.toml is the hash of what follows it.
  const std::string line = text.substr(0, text.find('\n'));
  std::error_code ignored;
  return std::filesystem::is_regular_file(layout.recipe(), ignored) &&
         storage::read_text(layout.recipe(), kMaxRunTomlBytes).starts_with(line);
}

Recipe recipe_of_run(const storage::RunLayout& layout) {
  try {
    return Recipe::load_of_run(layout.recipe());
  } catch (const Error&) {
    // The journal tells which field it is, if it has the recipe.
    const State state = fold(replay_if_any(layout)).state;
    if (const auto problem = recipe_problem(layout, state))
      throw Error(ErrorKind::kCorrupt, *problem);
    throw;
  }
}

bool put_back_recipe(const storage::RunLayout& layout, const State& state) {
  const std::string& text = state.recipe.text;
  if (text.empty()) return false;
  std::error_code ignored;  // what cannot be looked at is written anew
  if (std::filesystem::file_size(layout.recipe(), ignored) == text.size() &&
      storage::read_text(layout.recipe(), kMaxRunTomlBytes) == text)
    return false;
  storage::write_atomically(layout.recipe(), text);
  return true;
}

}  // namespace hedgerow::coordinator
