// hedgerow-worker probe-attention: figures of a model's attention by layer and head, of its
// teacher, of simple maps and of a student (worker/probe).
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <numeric>

#include "storage/base/error.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/device/device.hpp"
#include "worker/evaluate/evaluate_task.hpp"
#include "worker/probe/probe.hpp"
#include "worker/probe/selection.hpp"

namespace hedgerow::worker {
namespace {

struct ProbeArguments {
  std::string model, tokens, student, out, device = "auto", compute_dtype = "auto";
  std::vector<int> layers;
  std::vector<std::string> maps;
  int max_sequences = 0, select = 0, threads = 0;
  bool progress = false;
};

// A ranking looks at hundreds of sequences, and figures by head cost several times the layer
// itself.
constexpr std::size_t kMeasuredOfMany = 2;

// What is ranked are the file's first sequences, of whichever part; figures alone are of the part
// that is evaluated. Throws kUsage where there are fewer than shall be selected.
std::vector<std::int64_t> probed_sequences(const storage::TokenSequences& tokens,
                                           const ProbeArguments& given) {
  if (given.select == 0) return evaluation_sequences(tokens, given.max_sequences);
  std::int64_t count = tokens.num_sequences;
  if (given.max_sequences > 0) count = std::min<std::int64_t>(count, given.max_sequences);
  if (given.select > count)
    throw storage::Error(storage::ErrorKind::kUsage,
                         "--select " + std::to_string(given.select) + ": there are " +
                             std::to_string(count) + " sequences to select from");
  std::vector<std::int64_t> sequences(static_cast<std::size_t>(count));
  std::iota(sequences.begin(), sequences.end(), 0);
  return sequences;
}

storage::ExitCode probe_command(const ProbeArguments& given) {
  if (given.threads > 0) at::set_num_threads(given.threads);
  const auto model = storage::ModelDirectory::open(given.model);
  const auto tokens = storage::read_given(
      [&] { return storage::load_tokens(given.tokens, model.config().vocab_size); });
  const at::Device device = resolve_device(given.device);
  ProbeOptions options{.layers = {given.layers.begin(), given.layers.end()},
                       .max_measured = given.select > 0 ? kMeasuredOfMany : 0,
                       .corners = layers_and_heads(given.maps, model.config()),
                       .device = device,
                       .compute_dtype = resolve_compute_dtype(given.compute_dtype, device)};
  std::optional<Student> student;
  if (!given.student.empty())
    options.student = &student.emplace(
        storage::read_given([&] { return load_student(given.student, model, at::kCPU); }));
  const ProgressLines progress(given.progress);
  options.progress = [&](int done, int all) {
    progress("probing", static_cast<double>(done) / static_cast<double>(all));
  };
  nlohmann::json found = probe_attention(model, tokens, probed_sequences(tokens, given), options);
  if (given.select > 0) {
    found["selected"] = furthest_looking(found["by_sequence"], given.select);
    write_selection(given.out, tokens, found["selected"]);
  }
  print_line(found);
  return storage::ExitCode::kOk;
}

}  // namespace

void register_probe_attention(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "probe-attention", "Figures of attention by layer and head, as one JSON object");
  const auto options = std::make_shared<ProbeArguments>();
  command->add_option("--model", options->model, "Model directory, or org/name")->required();
  command->add_option("--tokens", options->tokens, "Tokens file (.h5)")->required();
  command->add_option("--student", options->student, "Directory with hedgerow.json");
  command->add_option("--layers", options->layers, "These alone, as 0,7,15")->delimiter(',');
  command->add_option("--maps", options->maps, "Weights of these heads' last queries, as 0/3,14/3")
      ->delimiter(',');
  command->add_option("--max-sequences", options->max_sequences, "At most this many; 0: all");
  CLI::Option* out = command->add_option("--out", options->out, "Tokens file of the selected ones");
  command
      ->add_option(
          "--select", options->select, "Writes so many, of the longest look_back, to --out")
      ->needs(out);
  command->add_option("--device", options->device, "auto, cpu or cuda");
  command->add_option("--compute-dtype", options->compute_dtype, "auto, bf16 or fp32");
  command->add_option("--threads", options->threads, "0: as many as cores");
  command->add_flag("--progress", options->progress, kProgressHelp);
  command->callback([options, &action] { action = [options] { return probe_command(*options); }; });
}

}  // namespace hedgerow::worker
