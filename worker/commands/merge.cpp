// hedgerow-worker merge: a model's weights with a LoRA adapter added, for a merged export.
#include "worker/model/merge.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "storage/base/error.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/model_arguments.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/model/decoder.hpp"
#include "worker/model/student.hpp"

namespace hedgerow::worker {
namespace {

struct MergeArguments {
  ModelArguments model;
  std::string out;
  bool progress = false;
};

storage::ExitCode merge_command(const MergeArguments& options) {
  const auto model = storage::ModelDirectory::open(options.model.model);
  // An adapter belongs to a student: one of another teacher, or of other maps, is refused before
  // anything is written.
  const auto [student, adapter] = load_given(options.model, model, at::kCPU);
  std::optional<at::ScalarType> dtype;
  if (options.model.compute_dtype != "auto")
    dtype = resolve_compute_dtype(options.model.compute_dtype, at::kCPU);
  const ProgressLines progress(options.progress);
  storage::verify_weights(model,
                          student ? student->teacher_weights : storage::WeightHashes{},
                          student ? student->name : "",
                          [&](double share) {
                            progress("checking the weights", share);
                            return true;
                          });
  write_merged(
      model, *adapter, options.out, dtype, [&](double share) { progress("merging", share); });
  return storage::ExitCode::kOk;
}

}  // namespace

void register_merge(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("merge", "Write the model's weights with W + (alpha / r) B A");
  const auto options = std::make_shared<MergeArguments>();
  add_model_directories(*command, options->model);
  command->get_option("--student")
      ->description("The adapter's student: checked to be of this model");
  command->get_option("--adapter")->required();
  command->add_option("--out", options->out, "Directory for the weight files; must hold none")
      ->required();
  command->add_option("--compute-dtype",
                      options->model.compute_dtype,
                      "bf16 or fp32: of the merged weights; auto: that which they have");
  command->add_flag("--progress", options->progress, kProgressHelp);
  command->callback([options, &action] { action = [options] { return merge_command(*options); }; });
}

}  // namespace hedgerow::worker
