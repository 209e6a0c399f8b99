#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/export/model_choice.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/tasks/evaluate_tasks.hpp"
#include "coordinator/cli/tasks/returns.hpp"
#include "coordinator/cli/terminal/control.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

struct EvaluateOptions {
  ModelOptions model;
  TaskOptions tasks;
  std::string tokens;
  std::string returns;  // "layers", "heads"
  int max_sequences = 0;
};

void print_result(const nlohmann::json& result, const std::string& tokens, Terminal& terminal) {
  terminal.print(result.value("subject", "") + " on " + tokens + ": perplexity " +
                 number_text(number_or_nan(result, "perplexity")) + " in " +
                 result.value("compute_dtype", "") + ", " +
                 std::to_string(std::llround(result.value("tokens_per_second", 0.0))) +
                 " tokens/s");
  for (const std::string& line : column_lines(result, terminal.answer_width()))
    terminal.print(line);
  for (const std::string& line : text_lines(result, terminal.answer_width())) terminal.print(line);
  if (!result.contains("layers")) return;
  Table table;
  table.column("layer", 3, true).column("MSE", 2, true).column("of the teacher's energy", 1, true);
  for (const nlohmann::json& layer : result["layers"]) {
    table.row({std::to_string(layer.value("layer", -1)),
               number_text(number_or_nan(layer, "mse")),
               number_text(number_or_nan(layer, "relative_mse")) +
                   (layer.value("kept_untrained", false) ? ", kept untrained" : "")});
  }
  for (const std::string& line : table.render(terminal.answer_width())) terminal.print(line);
}

ExitCode run_evaluate(EvaluateOptions& options, Terminal& terminal) {
  if (!options.tasks.tasks.empty() || options.tasks.prints_subjects) {
    require(options.tokens.empty() && options.max_sequences == 0,
            "--tokens and --max-sequences are of perplexities, not of --tasks");
    return evaluate_tasks(options.model, options.tasks, terminal);
  }
  ModelChoice choice = choose_model(options.model);
  if (!options.returns.empty()) {
    require(!choice.student.empty(), "--returns is of a student; --run or --student names one");
    choice = choice.without_lora();
  }
  std::string tokens = options.tokens;
  bool has_texts = false;
  int max_sequences = options.max_sequences;
  if (tokens.empty()) {
    require(!options.model.run.empty(),
            "--tokens FILE is needed with --model; 'hedgerow tokenize' makes one");
    const storage::Recipe recipe = recipe_of_run(storage::RunLayout(options.model.run));
    tokens = evaluated_tokens(options.model.run, recipe);
    has_texts = !recipe.texts.empty();
    // As many as the run itself took: its texts may be whole books.
    if (max_sequences == 0) max_sequences = recipe.evaluate.max_sequences;
  }
  require(std::filesystem::exists(tokens),
          tokens + ": no such tokens file; 'hedgerow tokenize' makes one");
  ChildCommand command{.arguments = {worker_binary(terminal.console()),
                                     "evaluate",
                                     "--json",
                                     "--progress",
                                     "--device",
                                     choice.device,
                                     "--tokens",
                                     tokens}};
  const auto more = choice.worker_arguments();
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  // A run's teacher has the control of the run's student.
  if (has_texts || (choice.student.empty() && !choice.run.empty())) {
    command.arguments.insert(command.arguments.end(),
                             {"--recipe", storage::RunLayout(options.model.run).recipe().string()});
  }
  if (has_texts) command.arguments.push_back("--texts");
  if (max_sequences > 0) {
    command.arguments.insert(command.arguments.end(),
                             {"--max-sequences", std::to_string(max_sequences)});
  }
  if (!options.returns.empty())
    return evaluate_returns(command, options.returns, options.model.run, terminal);
  const InterruptScope interrupts;
  terminal.status("evaluating " + choice.subject() + " ...");
  nlohmann::json result;
  if (!run_helper(terminal,
                  "evaluating",
                  "hedgerow-worker evaluate",
                  command,
                  [&](const nlohmann::json& object) { result = object; })) {
    return ExitCode::kInterrupted;
  }
  if (!result.is_object())
    throw Error(ErrorKind::kInternal, "hedgerow-worker evaluate gave no result");
  print_result(result, tokens, terminal);
  if (const std::string verdict = control_verdict(result); !verdict.empty())
    terminal.print(verdict);
  terminal.print_json(result);
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_evaluate(CLI::App& app) {
  const auto options = std::make_shared<EvaluateOptions>();
  add_model_options(app, options->model);
  add_device_option(app, options->model);
  app.add_option("--tokens", options->tokens, "a tokens file; the run's evaluate split unless told")
      ->type_name("FILE");
  app.add_option("--max-sequences",
                 options->max_sequences,
                 "at most so many of its sequences; of a run's own: evaluate.max_sequences")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 30).description(""));
  one_of(app.add_option("--returns",
                        options->returns,
                        "what each of the student's layers, or key/value heads, gives back under "
                        "softmax"),
         {"layers", "heads"});
  add_task_options(app, options->tasks);
  return [options](Terminal& terminal) { return run_evaluate(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
