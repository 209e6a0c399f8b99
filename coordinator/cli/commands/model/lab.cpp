#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/programs/temporary_directory.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

struct LabOptions {
  std::string study, out, text, model;
  bool small = false, published = false;
  int seeds = 0, threads = 0;
};

// Numbers with four digits, lists in one cell.
std::string cell_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return number_text(value.get<double>());
  if (value.is_null()) return "-";
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const json& element : value) text += (text.empty() ? "" : " ") + cell_of(element);
  return text;
}

void print_row(const json& row, Terminal& terminal) {
  std::string line;
  for (const auto& [key, value] : row.items()) {
    if (key != "event") line += (line.empty() ? "" : "  ") + key + " " + cell_of(value);
  }
  terminal.print(fit(line, terminal.answer_width()));
}

void print_claims(const json& claims, Terminal& terminal) {
  for (const json& claim : claims) {
    const std::string seeds = counted(claim.at("seeds").get<int>(), "seed");
    terminal.print(claim.at("verdict").get<std::string>() + ": " +
                   claim.at("claim").get<std::string>() + " (paper " +
                   claim.at("paper").get<std::string>() + ", ours " +
                   claim.at("ours").get<std::string>() + ", " + seeds + ")");
  }
}

// STUDY.json and, where Python has matplotlib, STUDY.png.
void write_results(const json& result, const LabOptions& given, Terminal& terminal) {
  std::error_code failed;
  fs::create_directories(given.out, failed);
  if (failed)
    throw Error(ErrorKind::kUsage, "--out: " + given.out + " cannot be made: " + failed.message());
  const fs::path path = fs::path(given.out) / (given.study + ".json");
  storage::write_atomically(path, result.dump(2) + "\n");
  terminal.say("wrote " + path.string());
  if (result.at("curves").empty()) return;
  try {
    run_python(terminal,
               "picture",
               "plot_study.py",
               {"--result", path, "--out", path.parent_path() / (given.study + ".png")},
               [&](const json& object) {
                 if (object.contains("written"))
                   terminal.say("wrote " + cell_of(object["written"]));
               });
  } catch (const Error& error) {
    terminal.warn(std::string("no picture: ") + error.what());
  }
}

void show(const json& object, const LabOptions& given, Terminal& terminal, bool& is_complete) {
  const std::string event = object.value("event", "");
  if (event == "study") {
    terminal.print(fit(object.at("study").get<std::string>() + " (" +
                           object.at("paper").get<std::string>() +
                           "): " + object.at("shows").get<std::string>() +
                           (object.at("is_built").get<bool>() ? "" : "; not built"),
                       terminal.answer_width()));
  } else if (event == "published") {
    terminal.print("the paper's settings, " + object.at("status").get<std::string>() + ":");
    for (const auto& [key, value] : object.at("settings").items())
      terminal.print("  " + key + " " + cell_of(value));
  } else if (event == "row") {
    print_row(object, terminal);
  } else if (event == "result") {
    is_complete = true;
    print_claims(object.at("claims"), terminal);
    if (!given.out.empty()) write_results(object, given, terminal);
  }
  terminal.print_json(object);
}

// The text as the model's own tokens. False: interrupted.
bool encode_text(const LabOptions& given, const fs::path& out, Terminal& terminal) {
  if (given.study != "encoder")
    throw Error(ErrorKind::kUsage,
                "--model: study '" + given.study + "' trains its own; encoder takes one");
  if (given.text.empty())
    throw Error(ErrorKind::kUsage, "--model: name a text file of some megabytes by --text too");
  return run_python(terminal,
                    "tokens",
                    "encode_text.py",
                    {"--model", given.model, "--text", given.text, "--out", out.string()},
                    [](const json&) {});
}

ExitCode run_lab(const LabOptions& given, Terminal& terminal) {
  ChildCommand command;
  command.arguments = {worker_binary(terminal.console()), "lab", given.study, "--progress"};
  if (given.published) command.arguments.push_back("--published");
  const auto add = [&](const char* name, const std::string& value) {
    command.arguments.insert(command.arguments.end(), {name, value});
  };
  if (given.seeds > 0) add("--seeds", std::to_string(given.seeds));
  if (given.threads > 0) add("--threads", std::to_string(given.threads));
  if (!given.text.empty()) add("--text", given.text);
  const InterruptScope interrupts;
  std::optional<TemporaryDirectory> made;
  if (!given.model.empty()) {
    const fs::path tokens = made.emplace().path() / "tokens.safetensors";
    if (!encode_text(given, tokens, terminal)) return ExitCode::kInterrupted;
    add("--model", given.model);
    add("--tokens", tokens.string());
  }
  // Written after the child, whose end would otherwise wait for the picture.
  std::vector<json> results;
  bool is_complete = given.study == "list" || given.published;
  const bool was_run =
      run_helper(terminal, given.study, "hedgerow-worker lab", command, [&](const json& object) {
        if (object.value("event", "") == "result") {
          results.push_back(object);
        } else {
          show(object, given, terminal, is_complete);
        }
      });
  for (const json& result : results) show(result, given, terminal, is_complete);
  if (was_run && is_complete) return ExitCode::kOk;
  terminal.warn("interrupted: a study has no checkpoint; the same command starts it again");
  return ExitCode::kInterrupted;
}

}  // namespace

RunCommand declare_lab(CLI::App& app) {
  const auto given = std::make_shared<LabOptions>();
  app.add_option("study", given->study, "which, or list")->required();
  CLI::Option* small =
      app.add_flag("--small", given->small, "at the size that runs here; so unless told");
  app.add_flag("--published", given->published, "show the paper's settings, which are not run")
      ->excludes(small);
  app.add_option("--out", given->out, "where STUDY.json and STUDY.png go")->type_name("DIR");
  app.add_option("--seeds", given->seeds, "of each trial; unless told the study's own")
      ->type_name("N")
      ->check(CLI::Range(1, 100).description(""));
  app.add_option("--threads", given->threads, "trials at once; as many as cores unless told")
      ->type_name("N")
      ->check(CLI::Range(1, 256).description(""));
  app.add_option("--text", given->text, "of studies that train a language model")
      ->type_name("FILE");
  app.add_option("--model", given->model, "a trained BERT (MiniLM), of encoder")->type_name("DIR");
  return [given](Terminal& terminal) { return run_lab(*given, terminal); };
}

}  // namespace hedgerow::coordinator::cli
