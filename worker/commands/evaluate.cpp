// hedgerow-worker evaluate: perplexity of a model directory on a tokens file, as it is, with a
// student's feature maps, or with a LoRA adapter on top; per-layer errors of a student.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>

#include "storage/base/error.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/model_arguments.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/device/device.hpp"
#include "worker/evaluate/evaluate_task.hpp"
#include "worker/model/tensor_bytes.hpp"
#include "worker/task/memory_peak.hpp"
#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

struct EvaluateArguments {
  ModelArguments model;
  std::string tokens, recipe, logits, returns;
  int max_sequences = 0;
  bool json = false, progress = false, texts = false;
};

// Collects all logits of the evaluated sequences as one tensor "logits" [sequences, T, V]: for
// parity tests.
class LogitsFile {
 public:
  LogitsFile(std::int64_t sequences, std::int64_t seq_len, std::int64_t vocab, std::int64_t first)
      : all_(at::empty({sequences, seq_len, vocab}, at::kFloat)), first_(first) {}
  void add(std::int64_t sequence, std::int64_t row, const at::Tensor& chunk) {
    all_.select(0, sequence - first_).narrow(0, row, chunk.size(0)).copy_(chunk);
  }
  void write(const std::filesystem::path& path) const {
    storage::write_safetensors(path, {{"logits", view_of(all_)}});
  }

 private:
  at::Tensor all_;
  std::int64_t first_;
};

void print_table(const nlohmann::json& result) {
  std::printf("perplexity %.4f in %s (loss %.5f over %lld targets), %.0f tokens/s\n",
              result["perplexity"].get<double>(),
              result["compute_dtype"].get<std::string>().c_str(),
              result["loss"].get<double>(),
              result["targets"].get<long long>(),
              result["tokens_per_second"].get<double>());
  for (const auto& [name, column] : result["columns"].items()) {
    std::printf("  %-10s perplexity %.4f, KL %.5f, top-1 %.4f\n",
                name.c_str(),
                column["perplexity"].get<double>(),
                column["kl"].get<double>(),
                column["top1"].get<double>());
  }
  if (result.contains("texts")) {
    for (const auto& [name, text] : result["texts"].items()) {
      std::printf("on %s (%s): perplexity %.4f over %lld targets\n",
                  name.c_str(),
                  text["in_domain"].get<bool>() ? "in domain" : "not in domain",
                  text["perplexity"].get<double>(),
                  text["targets"].get<long long>());
    }
  }
  if (!result.contains("layers")) return;
  std::printf("layer MSE: mean %.5f, worst %.5f\n",
              result["mse_mean"].get<double>(),
              result["mse_worst"].get<double>());
  for (const auto& layer : result["layers"]) {
    std::printf("  layer %3d  %.5f  (%.4f of the teacher's energy)\n",
                layer["layer"].get<int>(),
                layer["mse"].get<double>(),
                layer["relative_mse"].get<double>());
  }
}

// Every linear layer of the student, or every key/value head of it, back under softmax.
std::vector<OtherStudent> returned(const Student& student, int key_heads, bool by_head) {
  std::vector<OtherStudent> others;
  for (std::size_t layer = 0; layer < student.layers.size(); ++layer) {
    if (!student.layers[layer]) continue;
    for (int head = 0; head < (by_head ? key_heads : 1); ++head)
      others.push_back({&student, static_cast<int>(layer), by_head ? head : -1});
  }
  return others;
}

// {"kl", "loss", "texts": {NAME: {"kl", "loss"}}}, of all positions.
nlohmann::json student_figures(const Evaluation& evaluation) {
  const Figures& figures = evaluation.figures();
  nlohmann::json own = {{"kl", figures.kl}, {"loss", figures.loss}};
  for (const Evaluation::Text& text : evaluation.texts)
    own["texts"][text.name] = student_figures(text.evaluation);
  return own;
}

nlohmann::json returns_json(const storage::ModelDirectory& model,
                            const std::vector<TextShape>& texts,
                            const EvaluationPart& part,
                            const std::vector<OtherStudent>& others) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < others.size(); ++i) {
    nlohmann::json row =
        student_figures(evaluation_of_other(model, texts, part.others[i], others[i]));
    row["layer"] = others[i].softmax_layer;
    if (others[i].softmax_head >= 0) row["head"] = others[i].softmax_head;
    rows.push_back(std::move(row));
  }
  return rows;
}

storage::ExitCode evaluate_command(const EvaluateArguments& given) {
  const Stopwatch clock;
  const at::Device device = begin_computing(given.model);
  const auto model = storage::ModelDirectory::open(given.model.model);
  const auto tokens = storage::read_given(
      [&] { return storage::load_tokens(given.tokens, model.config().vocab_size); });
  const auto sequences = evaluation_sequences(tokens, given.max_sequences);
  const MemoryPeakMeter memory(device);
  EvaluateOptions options{
      .device = device, .compute_dtype = resolve_compute_dtype(given.model.compute_dtype, device)};
  const auto [student, adapter] = load_given(given.model, model, at::kCPU);
  if (student) options.student = &*student;
  if (adapter) options.adapter = &*adapter;
  std::optional<storage::Recipe> recipe;
  if (!given.recipe.empty()) recipe = storage::Recipe::load(given.recipe);
  if (recipe) options.control = control_of(*recipe);
  std::map<std::string, storage::TokenSequences> text_tokens;
  if (given.texts) {
    options.texts =
        texts_of(*recipe,
                 given.max_sequences,
                 [&](const std::string& name) -> const storage::TokenSequences& {
                   const auto path =
                       std::filesystem::path(given.tokens)
                           .replace_filename(std::filesystem::path(given.tokens).stem().string() +
                                             "-" + name + ".h5");
                   return text_tokens[name] = storage::read_given([&] {
                            return storage::load_tokens(path, model.config().vocab_size);
                          });
                 });
  }
  std::optional<LogitsFile> file;
  if (!given.logits.empty() && !sequences.empty()) {
    file.emplace(static_cast<std::int64_t>(sequences.size()),
                 tokens.seq_len,
                 model.config().vocab_size,
                 sequences.front());
    options.logits = [&](std::int64_t sequence, std::int64_t row, const at::Tensor& chunk) {
      file->add(sequence, row, chunk);
    };
  }
  const ProgressLines progress(given.progress);
  options.progress = [&](std::int64_t done, std::int64_t all, double /*loss*/) {
    // What follows the last layer, the vocabulary's logits, is counted as one more.
    progress("evaluating", static_cast<double>(done) / static_cast<double>(all + 1));
    return true;
  };
  const char* subject = options.adapter != nullptr   ? "lora"
                        : options.student != nullptr ? "transfer"
                                                     : "teacher";
  nlohmann::json result;
  if (given.returns.empty()) {
    result = to_json(evaluate(model, tokens, sequences, options), subject);
  } else {
    options.others =
        returned(*student, model.config().num_key_value_heads, given.returns == "heads");
    const EvaluationPart part = evaluate_part(model, tokens, sequences, options).value();
    const std::vector<TextShape> texts = text_shapes(tokens.seq_len, options.texts);
    const Evaluation own = evaluation_of_other(model, texts, part, {&*student});
    result = {{"student", student_figures(own)},
              {"returns", returns_json(model, texts, part, options.others)},
              {"state_bytes", own.state_bytes}};
  }
  if (given.texts) result["in_domain"] = recipe->validates_in_domain();
  result["seconds"] = clock.seconds();
  result["tokens_per_second"] =
      static_cast<double>(tokens_in(tokens, sequences, options.texts)) / clock.seconds();
  result["peak_memory"] = memory.peak();
  if (file) file->write(given.logits);
  if (given.json || !given.returns.empty()) {
    print_line(result);
  } else {
    print_table(result);
  }
  return storage::ExitCode::kOk;
}

}  // namespace

void register_evaluate(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("evaluate", "Perplexity of a model or student on a tokens file");
  const auto options = std::make_shared<EvaluateArguments>();
  add_model_options(*command, options->model);
  command
      ->add_option("--tokens",
                   options->tokens,
                   "Tokens file (.h5); its validation split, or all if it has none")
      ->required();
  command->add_option(
      "--recipe", options->recipe, "Of a student: gives the teacher alone its control");
  command
      ->add_flag("--texts",
                 options->texts,
                 "Also the texts of --recipe, whose tokens files lie beside --tokens")
      ->needs("--recipe");
  command->add_option("--max-sequences", options->max_sequences, "At most this many; 0: all");
  command->add_option(
      "--logits", options->logits, "Write all logits [sequences, T, V] to this safetensors file");
  command
      ->add_option("--returns",
                   options->returns,
                   "layers or heads: the student with each of its linear layers, or key/value "
                   "heads, back under softmax, as JSON")
      ->check(CLI::IsMember({"layers", "heads"}))
      ->needs("--student")
      ->excludes("--adapter");
  command->add_flag("--json", options->json, "One JSON object");
  command->add_flag("--progress", options->progress, kProgressHelp);
  command->callback(
      [options, &action] { action = [options] { return evaluate_command(*options); }; });
}

}  // namespace hedgerow::worker
