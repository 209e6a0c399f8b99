// hedgerow-worker answer: a model in memory that scores and continues token ids, a JSON line a
// question, until its input ends. lm-eval's model class talks to it
// (deploy/huggingface/tasks/hedgerow_lm.py).
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/model_arguments.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/device/device.hpp"
#include "worker/evaluate/figures.hpp"
#include "worker/generate/generator.hpp"
#include "worker/model/attention_path.hpp"
#include "worker/model/decoder.hpp"
#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

using nlohmann::json;
using storage::Error;
using storage::ErrorKind;

struct AnswerArguments {
  ModelArguments model;
  std::string recipe, window;
};

// The untrained window in the place of a student, or of the student of a recipe.
Student untrained_window(const AnswerArguments& given,
                         const storage::ModelDirectory& model,
                         const std::optional<Student>& student,
                         const at::Device& device) {
  std::optional<Control> control;
  if (student) {
    control = control_of(*student);
  } else if (!given.recipe.empty()) {
    control = control_of(storage::Recipe::load(given.recipe));
  }
  if (!control) {
    throw Error(ErrorKind::kUsage,
                "--window " + given.window +
                    " is the untrained window of a student; give --student, or the --recipe of one "
                    "with a window");
  }
  return control_student(*control, given.window, model.config(), device);
}

// What rows came to, and when the first of them got each token.
class Rows final : public GenerationObserver {
 public:
  explicit Rows(std::size_t count) : ids_(count) {}
  void on_token(std::int64_t row, std::int64_t /*position*/, std::int64_t /*token*/) override {
    if (row == 0) seconds_.push_back(clock_.seconds());
  }
  void on_row(std::int64_t row, const std::vector<std::int64_t>& ids) override {
    ids_[static_cast<std::size_t>(row)] = ids;
  }
  [[nodiscard]] const std::vector<std::vector<std::int64_t>>& ids() const { return ids_; }
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }

 private:
  Stopwatch clock_;
  std::vector<double> seconds_;
  std::vector<std::vector<std::int64_t>> ids_;
};

json scored(Generator& generator, const json& question) {
  std::vector<ScoredText> texts;
  for (const json& text : question.at("score"))
    texts.push_back({text.at("ids").get<std::vector<std::int64_t>>(), text.at("first")});
  json answers = json::array();
  for (const std::vector<TokenScore>& scores : generator.score(texts)) {
    std::vector<double> log_probabilities;
    bool is_greedy = true;
    for (const TokenScore& score : scores) {
      log_probabilities.push_back(score.log_probability);
      is_greedy = is_greedy && score.is_likeliest;
    }
    answers.push_back({{"log_probabilities", log_probabilities}, {"is_greedy", is_greedy}});
  }
  return {{"scores", std::move(answers)}};
}

json generated(Generator& generator, const json& question) {
  const auto prompts = question.at("generate").get<std::vector<std::vector<std::int64_t>>>();
  GenerateOptions options;
  options.max_new_tokens = question.at("max_new_tokens");
  options.end_tokens = question.value("end_tokens", std::vector<std::int64_t>{});
  options.sampling.temperature = question.value("temperature", 0.0);
  options.sampling.top_p = question.value("top_p", 1.0);
  options.sampling.seed = question.value("seed", std::uint64_t{0});
  Rows rows(prompts.size());
  generator.run(prompts, options, rows);
  json answer = {{"rows", rows.ids()}, {"cache_bytes", generator.cache_bytes()}};
  if (question.value("times", false)) answer["seconds"] = rows.seconds();
  return answer;
}

json answer_to(Generator& generator, const std::string& line) {
  try {
    const json question = json::parse(line);
    if (question.contains("score")) return scored(generator, question);
    if (question.contains("generate")) return generated(generator, question);
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kUsage, std::string("standard input: ") + error.what());
  }
  throw Error(ErrorKind::kUsage,
              R"(standard input: expected {"score": [..]} or {"generate": [..]}, found )" +
                  line.substr(0, 80));
}

storage::ExitCode answer_command(const AnswerArguments& given) {
  const at::Device device = begin_computing(given.model);
  const auto model = storage::ModelDirectory::open(given.model.model);
  ModelArguments trained = given.model;
  if (!given.window.empty()) {  // it takes the student's shape alone
    trained.adapter.clear();
    trained.recall_cache = kOwnRecallCache;
  }
  auto [student, adapter] = load_given(trained, model, device);
  if (!given.window.empty()) student = untrained_window(given, model, student, device);
  const at::ScalarType compute_dtype = resolve_compute_dtype(given.model.compute_dtype, device);
  AttentionPath path =
      attention_path(AttentionUse::kGenerate, model.config(), device, compute_dtype);
  json first = {{"compute_dtype", dtype_word(compute_dtype)},
                {"max_position_embeddings", model.config().max_position_embeddings}};
  if (student) {
    path.parameters = first_parameters(student->layers);
    path.options = student->options;
    first["state_bytes"] = state_bytes(*student, model.config(), !given.window.empty());
    first["window_size"] = student->attention.window_size;
    first["num_sinks"] = student->attention.num_sinks;
  }
  say_attention(path);
  Generator generator = Generator::load(
      model, std::move(student), adapter ? &*adapter : nullptr, device, compute_dtype);
  adapter.reset();
  print_line(first);
  for (std::string line; std::getline(std::cin, line);) print_line(answer_to(generator, line));
  return storage::ExitCode::kOk;
}

}  // namespace

void register_answer(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "answer",
      "Keep a model and answer questions, a JSON line each on stdin: {\"score\": [{\"ids\": "
      "[..], \"first\": N}, ..]}, {\"generate\": [[ids], ..], \"max_new_tokens\": N}");
  const auto options = std::make_shared<AnswerArguments>();
  add_model_options(*command, options->model);
  command->add_option("--recipe", options->recipe, "With --window: of a student that is not there");
  command->add_option(
      "--window",
      options->window,
      "In place of the student: its window and sinks, untrained (own), the untrained "
      "window of its bytes (equal), or one of so many tokens");
  command->callback(
      [options, &action] { action = [options] { return answer_command(*options); }; });
}

}  // namespace hedgerow::worker
