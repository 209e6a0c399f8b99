#include "coordinator/cli/run/tokenizing.hpp"

#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/run/source_format.hpp"
#include "storage/base/file.hpp"
#include "storage/base/scoped_file.hpp"

namespace hedgerow::coordinator::cli {

namespace fs = std::filesystem;
using storage::DataStage;

nlohmann::json tokenize(const TokenizeRequest& request, Terminal& terminal) {
  const std::string stage = storage::to_string(request.stage);
  // The script reads a file; what the recipe inherits and where its paths start is resolved in this
  // one.
  fs::path resolved = request.out;
  resolved += ".recipe.toml";
  fs::create_directories(fs::absolute(resolved).parent_path());
  storage::write_atomically(resolved, request.recipe.to_toml());
  nlohmann::json done;
  const storage::ScopedFile goes_again(resolved);
  run_python(
      terminal,
      "tokenize " + stage,
      "make_tokens.py",
      {"--recipe", resolved, "--model", request.model, "--stage", stage, "--out", request.out},
      [&](const nlohmann::json& object) {
        if (object.value("event", "") == "done") done = object;
      });
  return done;
}

std::vector<DataStage> stages_of(const storage::Recipe& recipe) {
  std::vector<DataStage> stages{DataStage::kTransfer};
  if (recipe.finetune.enabled) stages.push_back(DataStage::kFinetune);
  if (!recipe.data_evaluate.sources.empty()) stages.push_back(DataStage::kEvaluate);
  return stages;
}

std::vector<DataStage> stages_without_tokens(const storage::RunLayout& layout,
                                             const storage::Recipe& recipe) {
  std::vector<DataStage> stages = stages_of(recipe);
  std::erase_if(stages, [&](DataStage stage) {
    return fs::exists(layout.root() / storage::RunLayout::tokens(stage));
  });
  return stages;
}

bool tokenize_missing(const storage::RunLayout& layout,
                      const storage::Recipe& recipe,
                      Terminal& terminal) {
  for (const std::string& warning :
       json_read_as_text(recipe, stages_without_tokens(layout, recipe)))
    terminal.warn(warning);
  for (const DataStage stage : stages_of(recipe)) {
    const fs::path out = layout.resolve(storage::RunLayout::tokens(stage));
    if (fs::exists(out)) {
      terminal.detail(out.string() + ": there already");
      continue;
    }
    const nlohmann::json done = tokenize({recipe, recipe.model.path, stage, out}, terminal);
    if (done.is_null()) return false;
    terminal.say("tokenized " + std::string(storage::to_string(stage)) + ": " + tokens_text(done));
  }
  return true;
}

std::string tokens_text(const nlohmann::json& done) {
  return std::to_string(done.value("sequences", 0)) + " sequences of " +
         std::to_string(done.value("seq_len", 0)) + " tokens, " +
         std::to_string(done.value("num_train", 0)) + " for training";
}

}  // namespace hedgerow::coordinator::cli
