#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
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

// A text's file lies beside the section's own, as in a run: evaluate.h5, evaluate-NAME.h5.
fs::path out_of(const TokenizeOptions& options, const storage::TokensOf& of) {
  fs::path out = options.out;
  if (of.text.empty()) return out;
  return out.replace_filename(out.stem().string() + "-" + of.text + out.extension().string());
}

ExitCode run_tokenize(const TokenizeOptions& options, Terminal& terminal) {
  const storage::Recipe recipe = storage::Recipe::load(options.recipe);
  const std::string model = options.model.empty() ? recipe.model.path : options.model;
  const DataStage stage = stage_of(options.stage);
  std::vector<storage::TokensOf> files{stage};
  if (stage == DataStage::kEvaluate) {
    for (const storage::NamedText& text : recipe.texts) files.emplace_back(stage, text.name);
  }
  for (const storage::TokensOf& of : files) {
    const fs::path out = out_of(options, of);
    require(!fs::exists(out),
            out.string() + " exists and is not overwritten; choose another name or remove it");
  }
  const InterruptScope interrupts;
  nlohmann::json answer;
  for (const storage::TokensOf& of : files) {
    const fs::path out = out_of(options, of);
    const nlohmann::json done = tokenize({recipe, model, of, out}, terminal);
    if (done.is_null()) return ExitCode::kInterrupted;
    terminal.print(out.string() + ": " + tokens_text(done));
    if (of.text.empty()) {
      answer = done;
    } else {
      answer["texts"][of.text] = done;
    }
  }
  terminal.print_json(answer);
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
  app.add_option("--out",
                 options->out,
                 "the tokens file to write (HDF5); beside it OUT-NAME.h5 of each named text")
      ->type_name("FILE")
      ->required();
  app.add_option("--model", options->model, "another tokenizer than the recipe's model's")
      ->type_name("DIR");
  return [options](Terminal& terminal) { return run_tokenize(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
