#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/export/model_choice.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/programs/temporary_directory.hpp"
#include "coordinator/cli/run/tokenizing.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using nlohmann::json;
using storage::ExitCode;

struct ProbeOptions {
  ModelOptions model;
  std::string tokens, text, out, pictures;
  std::vector<int> layers;
  std::vector<std::string> maps;
  int max_sequences = 2, select = 0, seq_len = 0;
  bool heads = false;
};

// A figure of a head, by its path in the JSON.
struct Figure {
  const char *title, *path;
  int importance;
};
constexpr Figure kOfSoftmax[] = {{"entropy", "/softmax/entropy", 9},
                                 {"looks back", "/softmax/look_back", 8}};
constexpr Figure kOfMaps[] = {{"KL 1+ELU", "/maps/elu_plus_one/kl", 3},
                              {"KL exp(2x)", "/maps/exp(2x)/kl", 2},
                              {"KL taylor", "/maps/taylor/kl", 2}};
constexpr Figure kOfExponentialForms[] = {{"log10 m", "/favor/log10_features", 1},
                                          {"series 2", "/series/error_of_order/2", 1},
                                          {"series 10", "/series/error_of_order/10", 1}};
constexpr Figure kOfStudent[] = {{"KL", "/student/kl", 9},
                                 {"error", "/student/relative_error", 8},
                                 {"window", "/student/window", 6},
                                 {"sinks", "/student/sinks", 5},
                                 {"linear", "/student/linear", 7},
                                 {"monotone", "/student/monotonicity", 5},
                                 {"rank", "/student/effective_rank", 4},
                                 {"dead", "/student/dead_features", 4},
                                 {"least mass", "/student/least_mass", 1}};

std::vector<Figure> figures_of(const json& layers) {
  std::vector<Figure> figures(std::begin(kOfSoftmax), std::end(kOfSoftmax));
  const bool has_student = std::ranges::any_of(
      layers, [](const json& layer) { return layer["heads"][0].contains("student"); });
  if (has_student) figures.insert(figures.end(), std::begin(kOfStudent), std::end(kOfStudent));
  figures.insert(figures.end(), std::begin(kOfMaps), std::end(kOfMaps));
  figures.insert(figures.end(), std::begin(kOfExponentialForms), std::end(kOfExponentialForms));
  return figures;
}

double value_of(const json& head, const char* path) {
  const json::json_pointer at(path);
  return head.contains(at) && head[at].is_number() ? head[at].get<double>() : NAN;
}

double mean_over_heads(const json& heads, const char* path) {
  double sum = 0.0;
  int count = 0;
  for (const json& head : heads) {
    if (const double value = value_of(head, path); std::isfinite(value)) {
      sum += value;
      ++count;
    }
  }
  return count > 0 ? sum / count : NAN;
}

void print_probe(const json& found, bool by_head, Terminal& terminal) {
  const json& layers = found["layers"];
  const std::vector<Figure> figures = figures_of(layers);
  Table table;
  table.column("layer", 10, true);
  if (by_head) table.column("head", 10, true);
  for (const Figure& figure : figures) table.column(figure.title, figure.importance, true);
  for (const json& layer : layers) {
    const std::string name = std::to_string(layer["layer"].get<int>());
    if (!by_head) {
      std::vector<std::string> cells{name};
      for (const Figure& figure : figures)
        cells.push_back(number_text(mean_over_heads(layer["heads"], figure.path), 3));
      table.row(std::move(cells));
      continue;
    }
    for (const json& head : layer["heads"]) {
      std::vector<std::string> cells{name, std::to_string(head["head"].get<int>())};
      for (const Figure& figure : figures)
        cells.push_back(number_text(value_of(head, figure.path), 3));
      table.row(std::move(cells));
    }
  }
  for (const std::string& line : table.render(terminal.answer_width())) terminal.print(line);
}

// The heads that the student is furthest from, "14/3 2.41".
std::string hardest_heads(const json& layers) {
  constexpr std::size_t kMost = 5;
  std::vector<std::pair<double, std::string>> all;
  for (const json& layer : layers) {
    for (const json& head : layer["heads"]) {
      const double kl = value_of(head, "/student/kl");
      if (std::isfinite(kl))
        all.emplace_back(kl,
                         std::to_string(layer["layer"].get<int>()) + "/" +
                             std::to_string(head["head"].get<int>()) + " " + number_text(kl, 3));
    }
  }
  std::ranges::sort(all, std::greater<>());
  std::string text;
  for (std::size_t i = 0; i < std::min(all.size(), kMost); ++i)
    text += (i == 0 ? "" : ", ") + all[i].second;
  return text;
}

// Before the probe, which takes minutes.
void make_directory(const char* option, const std::filesystem::path& directory) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  require(!failed,
          std::string(option) + ": " + directory.string() + " cannot be made: " + failed.message());
}

void check_options(const ProbeOptions& options) {
  require(options.text.empty() || options.tokens.empty(), "--text and --tokens exclude each other");
  require(options.seq_len == 0 || !options.text.empty(),
          "--seq-len is the length of sequences of --text, which is not given");
  require(options.select == 0 || !options.out.empty(),
          "--select needs --out FILE, the tokens file that it writes");
  require(options.select <= options.max_sequences,
          "--select " + std::to_string(options.select) + ": --max-sequences " +
              std::to_string(options.max_sequences) +
              " are looked at; raise it, so that there are more to select from");
  require(options.out.empty() || options.select > 0,
          "--out is the file of --select N, which is not given");
  require(options.out.empty() || !std::filesystem::exists(options.out),
          options.out + " exists and is not overwritten; choose another name or remove it");
  if (!options.out.empty())
    make_directory("--out", std::filesystem::absolute(options.out).parent_path());
  require(
      options.maps.empty() == options.pictures.empty(),
      "--maps LAYER/HEAD,... names the heads and --pictures DIR the place; each needs the other");
  if (!options.pictures.empty()) make_directory("--pictures", options.pictures);
}

void say_selected(const json& selected, const std::string& out, Terminal& terminal) {
  const auto length = [](const json& entry) {
    return number_text(entry["look_back"].get<double>(), 4);
  };
  const bool is_one = selected.size() == 1;
  terminal.say("wrote " + std::to_string(selected.size()) + (is_one ? " sequence" : " sequences") +
               " to " + out + ", of effective length " + length(selected.front()) +
               (is_one ? "" : " down to " + length(selected.back())) + " tokens");
}

// false: interrupted.
bool draw_maps(const json& corners, const std::filesystem::path& directory, Terminal& terminal) {
  const std::filesystem::path figures = directory / "attention.json";
  storage::write_atomically(figures, corners.dump() + "\n");
  return run_python(terminal,
                    "pictures",
                    "plot_attention.py",
                    {"--maps", figures, "--out", directory},
                    [&](const json& object) {
                      if (object.contains("written"))
                        terminal.say("wrote " + object["written"].get<std::string>());
                    });
}

// One document, packed as [data.evaluate] packs a text that it evaluates whole. false: interrupted.
bool tokenize_text(const ProbeOptions& options,
                   const std::string& model,
                   const std::filesystem::path& out,
                   Terminal& terminal) {
  storage::Recipe recipe;
  storage::DataSource source;
  source.path = std::filesystem::absolute(options.text).string();
  recipe.data_evaluate.sources = {source};
  if (options.seq_len > 0) recipe.data_evaluate.seq_len = options.seq_len;
  recipe.data_evaluate.validation_sequences = 0;
  recipe.data_evaluate.max_sequences = options.max_sequences;
  const json done = tokenize({recipe, model, storage::DataStage::kEvaluate, out}, terminal);
  return !done.is_null();
}

ExitCode run_probe(ProbeOptions& options, Terminal& terminal) {
  check_options(options);
  const ModelChoice choice = choose_model(options.model).without_lora();
  const InterruptScope interrupts;
  std::optional<TemporaryDirectory> made;
  std::string tokens = options.tokens;
  if (!options.text.empty()) {
    tokens = (made.emplace().path() / "text.h5").string();
    if (!tokenize_text(options, choice.model, tokens, terminal)) return ExitCode::kInterrupted;
  }
  if (tokens.empty()) {
    require(!options.model.run.empty(),
            "--tokens FILE or --text FILE is needed with --model; 'hedgerow tokenize' makes the "
            "first");
    tokens =
        evaluated_tokens(options.model.run, recipe_of_run(storage::RunLayout(options.model.run)));
  }
  require(std::filesystem::exists(tokens),
          tokens + ": no such tokens file; 'hedgerow tokenize' makes one");
  ChildCommand command{.arguments = {worker_binary(terminal.console()),
                                     "probe-attention",
                                     "--progress",
                                     "--device",
                                     choice.device,
                                     "--compute-dtype",
                                     choice.compute_dtype,
                                     "--tokens",
                                     tokens,
                                     "--max-sequences",
                                     std::to_string(options.max_sequences),
                                     "--model",
                                     choice.model}};
  const auto add = [&](const char* name, const std::string& value) {
    command.arguments.insert(command.arguments.end(), {name, value});
  };
  if (!choice.student.empty()) add("--student", choice.student);
  for (const int layer : options.layers) add("--layers", std::to_string(layer));
  for (const std::string& head : options.maps) add("--maps", head);
  if (options.select > 0) {
    add("--select", std::to_string(options.select));
    add("--out", options.out);
  }
  json found;
  if (!run_helper(
          terminal, "probing", "hedgerow-worker probe-attention", command, [&](const json& object) {
            found = object;
          }))
    return ExitCode::kInterrupted;
  if (!found.is_object())
    throw storage::Error(storage::ErrorKind::kInternal,
                         "hedgerow-worker probe-attention gave no result");
  print_probe(found, options.heads, terminal);
  if (const std::string hardest = hardest_heads(found["layers"]); !hardest.empty())
    terminal.print("largest KL (layer/head): " + hardest);
  if (found.contains("selected")) say_selected(found["selected"], options.out, terminal);
  if (found.contains("corners") && !draw_maps(found["corners"], options.pictures, terminal))
    return ExitCode::kInterrupted;
  terminal.print_json(found);
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_probe(CLI::App& app) {
  const auto options = std::make_shared<ProbeOptions>();
  add_model_options(app, options->model);
  add_device_option(app, options->model);
  app.add_option("--tokens", options->tokens, "a tokens file; the run's evaluate split unless told")
      ->type_name("FILE");
  app.add_option("--text", options->text, "a text file in its place, one document")
      ->type_name("FILE");
  app.add_option("--seq-len", options->seq_len, "tokens a sequence of --text; 1024 unless told")
      ->type_name("N")
      ->check(CLI::Range(2, 1 << 20).description(""));
  app.add_option("--layers", options->layers, "these alone, as 0,7,15")
      ->delimiter(',')
      ->type_name("N,...");
  app.add_option("--max-sequences", options->max_sequences, "at most so many of its sequences")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20).description(""));
  app.add_option("--select",
                 options->select,
                 "writes the N sequences whose queries look back furthest to --out; of the first "
                 "--max-sequences of the file")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20).description(""));
  app.add_option("--out", options->out, "the tokens file that --select writes")->type_name("FILE");
  app.add_option("--maps",
                 options->maps,
                 "heads, as 0/3,14/3, whose last queries' weights in the first sequence are drawn")
      ->delimiter(',')
      ->type_name("LAYER/HEAD,...");
  app.add_option("--pictures", options->pictures, "where a picture of each of --maps goes")
      ->type_name("DIR");
  app.add_flag("--heads", options->heads, "a row a head, not a row a layer");
  return [options](Terminal& terminal) { return run_probe(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
