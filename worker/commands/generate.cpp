// hedgerow-worker generate: prompts as token ids on stdin, continuations as token ids on stdout.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/model_arguments.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/device/device.hpp"
#include "worker/generate/generator.hpp"
#include "worker/model/attention_path.hpp"
#include "worker/model/decoder.hpp"
#include "worker/task/failure.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

struct GenerateArguments {
  ModelArguments model;
  GenerateOptions generate;
  int ranks = 1, batch = 0;
  bool progress = false;
};

using Prompts = std::vector<std::vector<std::int64_t>>;

Prompts parse_prompts(const std::string& text) {
  try {
    return nlohmann::json::parse(text).at("prompts").get<Prompts>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(
        ErrorKind::kUsage,
        std::string("standard input: expected {\"prompts\": [[token ids], ...]}: ") + error.what());
  }
}

// mpirun gives its standard input to rank 0.
Prompts read_prompts(Communicator* ranks) {
  std::string text;
  if (ranks == nullptr || ranks->rank() == 0)
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (ranks != nullptr) {
    const DeadlineScope timeout(*ranks);
    std::uint64_t size = text.size();
    ranks->broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
    text.resize(size);
    ranks->broadcast(std::as_writable_bytes(std::span(text)), 0);
  }
  return parse_prompts(text);
}

// Rank 0's on every rank: "auto" is what a machine multiplies faster, and they may be different
// ones.
at::ScalarType compute_dtype_of(const std::string& word,
                                const at::Device& device,
                                Communicator* ranks) {
  at::ScalarType dtype = resolve_compute_dtype(word, device);
  if (ranks != nullptr) {
    const DeadlineScope timeout(*ranks);  // one may still read its student
    ranks->broadcast(std::as_writable_bytes(std::span(&dtype, 1)), 0);
  }
  return dtype;
}

// The observer of a rank that does not print.
struct Silent final : GenerationObserver {
  void on_row(std::int64_t /*row*/, const std::vector<std::int64_t>& /*ids*/) override {}
};

// One JSON line a row, as soon as it ends, and how far all of them are.
class Printer final : public GenerationObserver {
 public:
  Printer(const ProgressLines& progress, std::size_t num_rows, std::int64_t max_new_tokens)
      : progress_(progress),
        max_new_tokens_(max_new_tokens),
        num_tokens_(static_cast<std::int64_t>(num_rows) * max_new_tokens) {}

  void on_prefill(double share) override { progress_("reading the prompts", share); }
  void on_token(std::int64_t /*row*/, std::int64_t /*position*/, std::int64_t /*token*/) override {
    show(num_done_ + 1);
  }
  void on_row(std::int64_t row, const std::vector<std::int64_t>& ids) override {
    print_line({{"row", first_ + row}, {"ids", ids}});
    // A row that ends early leaves nothing to wait for.
    show(num_done_ + max_new_tokens_ - static_cast<std::int64_t>(ids.size()));
  }

  // What is said from here on is of the prompts from this one on.
  void begin_at(std::int64_t first) { first_ = first; }

 private:
  void show(std::int64_t num_done) {
    num_done_ = num_done;
    progress_("generating", static_cast<double>(num_done) / static_cast<double>(num_tokens_));
  }

  const ProgressLines& progress_;
  std::int64_t max_new_tokens_, num_tokens_, num_done_ = 0, first_ = 0;
};

// `ranks` nullptr: alone.
storage::ExitCode generate(const GenerateArguments& options, Communicator* ranks) {
  const at::Device device = begin_computing(options.model);
  options.generate.sampling.validate();
  const bool prints = ranks == nullptr || ranks->rank() == 0;
  const ProgressLines progress(options.progress && prints);
  const Prompts prompts = read_prompts(ranks);
  const auto model = storage::ModelDirectory::open(options.model.model);
  const PipelinePlace place = place_among(ranks, model.config());
  auto [student, adapter] = load_given(
      options.model, model, device, [&place](int layer) { return place.layers.contains(layer); });
  const at::ScalarType compute_dtype = compute_dtype_of(options.model.compute_dtype, device, ranks);
  if (prints) print_line({{"compute_dtype", dtype_word(compute_dtype)}});
  if (prints) {
    AttentionPath path =
        attention_path(AttentionUse::kGenerate, model.config(), device, compute_dtype);
    if (student) {
      path.parameters = first_parameters(student->layers);
      path.options = student->options;
    }
    say_attention(path);
  }
  Generator generator = Generator::load(
      model,
      std::move(student),
      adapter ? &*adapter : nullptr,
      device,
      compute_dtype,
      [&](double share) { progress("loading the model", share); },
      place);
  adapter.reset();  // its LoRA is in the weights
  Printer printer(progress, prompts.size(), options.generate.max_new_tokens);
  Silent silent;
  const auto count = std::ssize(prompts);
  const std::int64_t batch = options.batch > 0 ? options.batch : count;
  for (std::int64_t first = 0; first < count; first += batch) {
    printer.begin_at(first);
    GenerateOptions own = options.generate;
    own.sampling.first_row = first;
    generator.run({prompts.begin() + first, prompts.begin() + std::min(first + batch, count)},
                  own,
                  prints ? static_cast<GenerationObserver&>(printer) : silent);
  }
  return storage::ExitCode::kOk;
}

storage::ExitCode generate_command(const GenerateArguments& options) {
  if (options.ranks == 1) return generate(options, nullptr);
  const auto ranks = make_mpi_communicator();
  try {
    if (ranks->world_size() != options.ranks) {
      throw Error(ErrorKind::kUsage,
                  "--ranks " + std::to_string(options.ranks) + ", but mpirun started " +
                      std::to_string(ranks->world_size()) +
                      "; give mpirun -n and --ranks the same number");
    }
    return generate(options, ranks.get());
  } catch (...) {
    // At once, without MPI_Finalize, which would wait for the others: mpirun ends them.
    const Failure failure = current_failure({.name = "generate"});
    std::fprintf(stderr, "hedgerow-worker: rank %d: %s\n", ranks->rank(), failure.message.c_str());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(storage::exit_code(failure.kind)));
  }
}

}  // namespace

void register_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate",
                                         "Continue prompts: {\"prompts\": [[ids], ...]} on stdin, "
                                         "{\"compute_dtype\": ..} and {\"row\": .., \"ids\": "
                                         "[..]} lines on stdout");
  const auto options = std::make_shared<GenerateArguments>();
  auto& generate = options->generate;
  add_model_options(*command, options->model);
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
  command
      ->add_option("--ranks",
                   options->ranks,
                   "As many as mpirun starts of this, each with its share of the layers; 1: alone, "
                   "without mpirun")
      ->check(CLI::PositiveNumber);
  command->add_option("--batch", options->batch, "Prompts that step together; 0: all of them")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--progress", options->progress, kProgressHelp);
  command->callback(
      [options, &action] { action = [options] { return generate_command(*options); }; });
}

}  // namespace hedgerow::worker
