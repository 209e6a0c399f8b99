// hedgerow-worker merge: a model's weights with a LoRA adapter added, for a merged export.
#include "worker/model/merge.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "storage/base/error.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/model/decoder.hpp"
#include "worker/model/student.hpp"

namespace hedgerow::worker {
namespace {

struct MergeArguments {
  std::string model, student, adapter, out, compute_dtype = "auto";
  bool progress = false;
};

storage::ExitCode merge_command(const MergeArguments& options) {
  const auto model = storage::ModelDirectory::open(options.model);
  // An adapter belongs to a student: one of another teacher is refused before anything is written.
  std::optional<Student> student;
  const LoraAdapter adapter = storage::read_given([&] {
    if (!options.student.empty()) student = load_student(options.student, model, at::kCPU);
    LoraAdapter loaded = load_adapter(options.adapter, model.config());
    if (student) put_in_place(*student, loaded.trained);  // that the maps are this student's
    return loaded;
  });
  std::optional<at::ScalarType> dtype;
  if (options.compute_dtype != "auto")
    dtype = resolve_compute_dtype(options.compute_dtype, at::kCPU);
  const ProgressLines progress(options.progress);
  storage::verify_weights(model,
                          student ? student->teacher_weights : storage::WeightHashes{},
                          student ? student->name : "",
                          [&](double share) {
                            progress("checking the weights", share);
                            return true;
                          });
  write_merged(
      model, adapter, options.out, dtype, [&](double share) { progress("merging", share); });
  return storage::ExitCode::kOk;
}

}  // namespace

void register_merge(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("merge", "Write the model's weights with W + (alpha / r) B A");
  const auto options = std::make_shared<MergeArguments>();
  command
      ->add_option(
          "--model", options->model, "Model directory, or org/name in the local Hugging Face cache")
      ->required();
  command->add_option(
      "--student", options->student, "The adapter's student: checked to be of this model");
  command->add_option("--adapter", options->adapter, "PEFT LoRA directory")->required();
  command->add_option("--out", options->out, "Directory for the weight files; must hold none")
      ->required();
  command->add_option("--compute-dtype",
                      options->compute_dtype,
                      "bf16 or fp32: of the merged weights; auto: that which they have");
  command->add_flag("--progress", options->progress, kProgressHelp);
  command->callback([options, &action] { action = [options] { return merge_command(*options); }; });
}

}  // namespace hedgerow::worker
