// hedgerow-worker generate: prompts as token ids on stdin, continuations as token ids on stdout.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/device/device.hpp"
#include "worker/generate/generator.hpp"
#include "worker/model/decoder.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

struct GenerateArguments {
  std::string model, student, adapter;
  std::string device = "auto", compute_dtype = "auto";
  GenerateOptions generate;
  int threads = 0;
  bool progress = false;
};

std::vector<std::vector<std::int64_t>> read_prompts(std::istream& in) {
  const std::string text(std::istreambuf_iterator<char>(in), {});
  try {
    return nlohmann::json::parse(text).at("prompts").get<std::vector<std::vector<std::int64_t>>>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(
        ErrorKind::kUsage,
        std::string("standard input: expected {\"prompts\": [[token ids], ...]}: ") + error.what());
  }
}

// One JSON line a row, as soon as it ends, and how far all of them are.
class Printer final : public GenerationObserver {
 public:
  Printer(const ProgressLines& progress, std::size_t num_rows, std::int64_t max_new_tokens)
      : progress_(progress),
        max_new_tokens_(max_new_tokens),
        num_tokens_(static_cast<std::int64_t>(num_rows) * max_new_tokens) {}

  void on_prefill(double share) override { progress_("reading the prompts", share); }
  void on_logits(std::int64_t /*row*/, std::int64_t /*position*/, const at::Tensor&) override {
    show(num_done_ + 1);
  }
  void on_row(std::int64_t row, const std::vector<std::int64_t>& ids) override {
    print_line({{"row", row}, {"ids", ids}});
    // A row that ends early leaves nothing to wait for.
    show(num_done_ + max_new_tokens_ - static_cast<std::int64_t>(ids.size()));
  }

 private:
  void show(std::int64_t num_done) {
    num_done_ = num_done;
    progress_("generating", static_cast<double>(num_done) / static_cast<double>(num_tokens_));
  }

  const ProgressLines& progress_;
  std::int64_t max_new_tokens_, num_tokens_, num_done_ = 0;
};

storage::ExitCode generate_command(const GenerateArguments& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  options.generate.sampling.validate();
  const ProgressLines progress(options.progress);
  const auto prompts = read_prompts(std::cin);
  const at::Device device = resolve_device(options.device);
  const auto model = storage::ModelDirectory::open(options.model);
  std::optional<Student> student;
  if (!options.student.empty())
    student = storage::read_given([&] { return load_student(options.student, model, device); });
  std::optional<LoraAdapter> adapter;
  if (!options.adapter.empty())
    adapter = storage::read_given([&] { return load_adapter(options.adapter, model.config()); });
  if (student && adapter) storage::read_given([&] { put_in_place(*student, adapter->trained); });
  const at::ScalarType compute_dtype = resolve_compute_dtype(options.compute_dtype, device);
  print_line({{"compute_dtype", dtype_word(compute_dtype)}});
  Generator generator =
      Generator::load(model,
                      std::move(student),
                      adapter ? &*adapter : nullptr,
                      device,
                      compute_dtype,
                      [&](double share) { progress("loading the model", share); });
  Printer printer(progress, prompts.size(), options.generate.max_new_tokens);
  generator.run(prompts, options.generate, printer);
  return storage::ExitCode::kOk;
}

}  // namespace

void register_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate",
                                         "Continue prompts: {\"prompts\": [[ids], ...]} on stdin, "
                                         "{\"compute_dtype\": ..} and {\"row\": .., \"ids\": "
                                         "[..]} lines on stdout");
  const auto options = std::make_shared<GenerateArguments>();
  auto& generate = options->generate;
  command
      ->add_option(
          "--model", options->model, "Model directory, or org/name in the local Hugging Face cache")
      ->required();
  command->add_option(
      "--student", options->student, "Directory with hedgerow.json and feature_maps.safetensors");
  command->add_option("--adapter", options->adapter, "PEFT LoRA directory");
  command
      ->add_option("--max-new-tokens", generate.max_new_tokens, "At most this many tokens a prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--temperature", generate.sampling.temperature, "0: greedy")
      ->capture_default_str();
  command
      ->add_option("--top-p",
                   generate.sampling.top_p,
                   "Sample from the likeliest tokens that hold this much")
      ->capture_default_str();
  command->add_option("--seed", generate.sampling.seed, "Of the sampler")->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str();
  command->add_option("--compute-dtype", options->compute_dtype, "auto, bf16 or fp32")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "0: as many as cores");
  command->add_flag("--progress", options->progress, kProgressHelp);
  command->callback(
      [options, &action] { action = [options] { return generate_command(*options); }; });
}

}  // namespace hedgerow::worker
