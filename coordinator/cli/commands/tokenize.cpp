#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/run/source_format.hpp"
#include "coordinator/cli/run/tokenizing.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::DataStage;
using storage::ExitCode;

struct TokenizeOptions {
  std::string recipe, stage, out, model;
};

DataStage stage_of(const std::string& word) {
  if (word == "finetune") return DataStage::kFinetune;
  return word == "evaluate" ? DataStage::kEvaluate : DataStage::kTransfer;
}

ExitCode run_tokenize(const TokenizeOptions& options, Terminal& terminal) {
  const storage::Recipe recipe = storage::Recipe::load(options.recipe);
  require(!fs::exists(options.out),
          options.out + " exists and is not overwritten; choose another name or remove it");
  const DataStage stage = stage_of(options.stage);
  for (const std::string& warning : json_read_as_text(recipe, {stage})) terminal.warn(warning);
  const InterruptScope interrupts;
  const nlohmann::json done = tokenize(
      {recipe, options.model.empty() ? recipe.model.path : options.model, stage, options.out},
      terminal);
  if (done.is_null()) return ExitCode::kInterrupted;
  terminal.print(options.out + ": " + tokens_text(done));
  terminal.print_json(done);
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_tokenize(CLI::App& app) {
  const auto options = std::make_shared<TokenizeOptions>();
  app.add_option("--recipe", options->recipe, "the recipe whose data section is tokenized")
      ->type_name("FILE")
      ->required();
  one_of(app.add_option("--stage", options->stage, "which data section"),
         {"transfer", "finetune", "evaluate"})
      ->required();
  app.add_option("--out", options->out, "the tokens file to write (HDF5)")
      ->type_name("FILE")
      ->required();
  app.add_option("--model", options->model, "another tokenizer than the recipe's model's")
      ->type_name("DIR");
  return [options](Terminal& terminal) { return run_tokenize(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
