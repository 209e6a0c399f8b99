#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <memory>
#include <sstream>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/export/model_choice.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/host/launcher.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "storage/files/file.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using nlohmann::json;
using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

struct GenerateOptions {
  ModelOptions model;
  std::vector<std::string> prompts;
  std::string prompts_file;
  int batch = 0;  // 0: all together
  bool chat = false;
  int max_new_tokens = 0;  // 0: the recipe's, or 40
  int ranks = 1;
  double temperature = 0.0, top_p = 1.0;
  std::uint64_t seed = 0;
  json add_bos = "auto";  // the recipe's of a run, as text.py takes it
};

// One request a line through text.py; one reply object each. Throws kUsage for a request that it
// could not serve.
std::vector<json> ask_tokenizer(const std::string& model,
                                const std::vector<json>& requests,
                                Terminal& terminal) {
  std::string input;
  for (const json& request : requests) input += request.dump() + "\n";
  std::vector<json> replies;
  const bool finished = run_python(
      terminal,
      "tokenize",
      "text.py",
      {"--model", storage::ModelDirectory::locate(model)},
      [&](const json& reply) { replies.push_back(reply); },
      input);
  if (!finished) return {};
  for (const json& reply : replies) {
    if (reply.contains("error"))
      throw Error(ErrorKind::kUsage, "text.py: " + reply.value("error", ""));
  }
  if (replies.size() != requests.size()) {
    throw Error(ErrorKind::kInternal,
                "text.py gave " + std::to_string(replies.size()) + " replies to " +
                    std::to_string(requests.size()) + " requests");
  }
  return replies;
}

// CLI11 takes a larger number for the largest.
std::string whole_number_problem(const std::string& word) {
  std::uint64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, value);
  if (error == std::errc() && rest == end) return "";
  return "expected a whole number from 0 to 18446744073709551615, found " + word;
}

// Before a tokenizer and MPI start.
void require_a_layer_for_each_rank(const std::string& model, int ranks) {
  const int layers = storage::ModelDirectory::open(model).config().num_hidden_layers;
  require(ranks <= layers,
          "--ranks " + std::to_string(ranks) + ": each rank holds at least one layer, and " +
              model + " has " + std::to_string(layers) + "; lower --ranks");
}

struct Generated {
  std::vector<json> ids;  // the new ones of each prompt, in order; empty if interrupted
  std::string compute_dtype;
};

Generated generate_ids(const GenerateOptions& options,
                       const ModelChoice& choice,
                       const json& prompts,
                       Terminal& terminal) {
  const std::string ranks = std::to_string(options.ranks);
  ChildCommand command{.arguments = {}, .input = json{{"prompts", prompts}}.dump() + "\n"};
  if (options.ranks > 1) {
    command.arguments = mpirun_words(/*in_allocation=*/false);
    command.arguments.insert(command.arguments.end(), {"-n", ranks});
  }
  command.arguments.insert(command.arguments.end(),
                           {worker_binary(terminal.console()),
                            "generate",
                            "--progress",
                            "--ranks",
                            ranks,
                            "--batch",
                            std::to_string(options.batch),
                            "--device",
                            choice.device,
                            "--max-new-tokens",
                            std::to_string(options.max_new_tokens),
                            "--temperature",
                            std::to_string(options.temperature),
                            "--top-p",
                            std::to_string(options.top_p),
                            "--seed",
                            std::to_string(options.seed)});
  const auto more = choice.worker_arguments();
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  Generated generated{std::vector<json>(prompts.size()), ""};
  std::vector<json>& rows = generated.ids;
  terminal.status("generating ...");
  const auto take_row = [&](const json& object) {
    if (object.contains("compute_dtype"))
      generated.compute_dtype = object.value("compute_dtype", "");
    const std::size_t row = object.value("row", rows.size());
    if (row < rows.size() && object.contains("ids")) rows[row] = object["ids"];
  };
  if (!run_helper(terminal, "generating", "hedgerow-worker generate", command, take_row)) return {};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].is_array()) {
      throw Error(ErrorKind::kInternal,
                  "hedgerow-worker generate gave nothing for prompt " + std::to_string(row));
    }
  }
  return generated;
}

// What the command line leaves open comes from the run's recipe.
void fill_from_recipe(GenerateOptions& options) {
  storage::EvaluateSection section;
  if (!options.model.run.empty()) {
    const storage::Recipe recipe = recipe_of_run(storage::RunLayout(options.model.run));
    section = recipe.evaluate;
    // The student begins as the texts that it learned from.
    const storage::AddBos add_bos = recipe.data_transfer.add_bos;
    if (add_bos != storage::AddBos::kAuto) options.add_bos = add_bos == storage::AddBos::kYes;
  }
  if (options.max_new_tokens == 0) options.max_new_tokens = section.max_new_tokens;
  if (options.prompts.empty()) options.prompts = section.prompts;
  const std::string& run = options.model.run;
  require(!options.prompts.empty(),
          "no prompt was given" +
              (run.empty() ? "" : ", and the recipe of " + run + " has no evaluate.prompts") +
              "; say hedgerow generate --run " + (run.empty() ? "DIR" : run) +
              " \"Once upon a time\"");
}

// A prompt a line; a line that begins with { is an object with "prompt", so that a prompt may have
// several lines.
std::vector<std::string> prompts_of(const std::string& path) {
  require(std::filesystem::is_regular_file(path),
          path + ": no such file; --prompts names a text with a prompt a line");
  std::vector<std::string> prompts;
  std::istringstream lines(storage::read_text(path));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) continue;
    if (line.front() != '{') {
      prompts.push_back(line);
      continue;
    }
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    require(object.is_object() && object.contains("prompt") && object["prompt"].is_string(),
            path + ": line " + std::to_string(number) +
                R"(: begins with {, but is no object with a text "prompt")");
    prompts.push_back(object["prompt"]);
  }
  require(!prompts.empty(), path + ": no prompt in it; write one a line");
  return prompts;
}

// Its linear branch has more keys to sum than it ever had, and their weight drowns the window's
// (README, Results).
void warn_beyond_training(const GenerateOptions& options,
                          const ModelChoice& choice,
                          const json& prompts,
                          Terminal& terminal) {
  if (options.model.run.empty() || choice.student.empty()) return;
  const storage::Recipe recipe = recipe_of_run(storage::RunLayout(options.model.run));
  const int trained =
      std::max(recipe.data_transfer.seq_len,
               recipe.finetune.enabled && !choice.lora.empty() ? recipe.data_finetune.seq_len : 0);
  std::size_t longest = 0;
  for (const json& ids : prompts) longest = std::max(longest, ids.size());
  longest += static_cast<std::size_t>(options.max_new_tokens);
  if (longest <= static_cast<std::size_t>(trained)) return;
  terminal.warn("the student learned from sequences of " + std::to_string(trained) +
                " tokens, and up to " + std::to_string(longest) +
                " are asked for: beyond what it learned from it soon writes nonsense");
}

ExitCode run_generate(GenerateOptions options, Terminal& terminal) {
  const ModelChoice choice = choose_model(options.model);
  if (!options.prompts_file.empty()) {
    require(options.prompts.empty(), "--prompts and prompts on the command line: give one of them");
    options.prompts = prompts_of(options.prompts_file);
  }
  fill_from_recipe(options);
  if (options.ranks > 1) require_a_layer_for_each_rank(choice.model, options.ranks);
  for (std::size_t i = 0; i < options.prompts.size(); ++i) {
    const std::string name = "prompt " + std::to_string(i);
    require(!options.prompts[i].empty(), name + " is empty; give it some text");
  }
  const InterruptScope interrupts;
  std::vector<json> requests;
  for (const std::string& prompt : options.prompts) {
    json request{{"add_bos", options.add_bos}};
    if (options.chat) {
      request["chat"] = json::array({{{"role", "user"}, {"content", prompt}}});
    } else {
      request["encode"] = prompt;
    }
    requests.push_back(std::move(request));
  }
  json prompts = json::array();
  for (const json& reply : ask_tokenizer(choice.model, requests, terminal))
    prompts.push_back(reply["ids"]);
  if (is_interrupted()) return ExitCode::kInterrupted;
  warn_beyond_training(options, choice, prompts, terminal);
  const Generated generated = generate_ids(options, choice, prompts, terminal);
  if (is_interrupted()) return ExitCode::kInterrupted;
  const std::vector<json>& rows = generated.ids;
  std::vector<json> decode;
  for (std::size_t row = 0; row < rows.size(); ++row)
    decode.push_back({{"decode", rows[row]}, {"after", prompts[row]}});
  if (is_interrupted()) return ExitCode::kInterrupted;
  const std::vector<json> texts = ask_tokenizer(choice.model, decode, terminal);
  if (is_interrupted()) return ExitCode::kInterrupted;
  terminal.say(choice.subject() + " in " + generated.compute_dtype);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const std::string text = texts[row].value("text", "");
    if (row > 0) terminal.print("");
    terminal.print(terminal.coloured(options.prompts[row], "1") + (options.chat ? "\n" : "") +
                   text);
    terminal.print_json({{"prompt", options.prompts[row]},
                         {"text", text},
                         {"ids", rows[row]},
                         {"subject", choice.subject()},
                         {"compute_dtype", generated.compute_dtype}});
  }
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_generate(CLI::App& app) {
  const auto options = std::make_shared<GenerateOptions>();
  app.add_option("--prompt,prompt",
                 options->prompts,
                 "one or more texts to go on from; with --run, those of its recipe unless told")
      ->type_name("TEXT");
  app.add_option("--prompts",
                 options->prompts_file,
                 "a file with a prompt a line, or a JSON object with \"prompt\"")
      ->type_name("FILE");
  app.add_option("--batch", options->batch, "prompts that step together; all of them unless told")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16).description(""));
  add_model_options(app, options->model);
  add_device_option(app, options->model);
  app.add_flag("--chat", options->chat, "wrap each prompt in the model's chat template");
  app.add_option("--max-new-tokens",
                 options->max_new_tokens,
                 "tokens to generate for each prompt; the recipe's, or 40, unless told")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24).description(""));
  app.add_option("--ranks",
                 options->ranks,
                 "processes that hold the layers together, started by mpirun: for a model that one "
                 "device cannot hold")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16).description(""))
      ->capture_default_str();
  app.add_option("--temperature", options->temperature, "0: always the likeliest token")
      ->type_name("X")
      ->check(CLI::Range(0.0, 100.0).description(""))
      ->capture_default_str();
  app.add_option("--top-p", options->top_p, "sample from the likeliest tokens of this share")
      ->type_name("P")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->capture_default_str();
  app.add_option("--seed", options->seed, "of the sampling")
      ->check(CLI::Validator(whole_number_problem, ""))
      ->type_name("N")
      ->capture_default_str();
  return [options](Terminal& terminal) { return run_generate(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
