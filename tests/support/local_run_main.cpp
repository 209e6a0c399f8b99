// local_run RUN: captures and transfers every block of a prepared run directory (run.toml, tokens/)
// in this process, without a coordinator, joins the maps into RUN/student and prints one JSON
// object: each layer's metrics, seconds of the stages, and the perplexities of teacher and student
// on the evaluate tokens when there are any.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

#include "storage/files/file.hpp"
#include "tests/support/tiny_run.hpp"
#include "worker/evaluate/evaluate_task.hpp"
#include "worker/task/stopwatch.hpp"

namespace hedgerow::tests {
namespace {

void write_student(worker::RunContext& run, const PipelineResult& pipeline) {
  const auto directory = run.layout().root() / "student";
  std::filesystem::create_directories(directory);
  std::vector<storage::SafetensorsFile> files;
  std::map<std::string, storage::TensorView> tensors;
  for (const auto& artifact : pipeline.artifacts) {
    files.emplace_back(run.layout().root() / artifact.name);
    for (const auto& [name, view] : files.back().tensors()) tensors[name] = view;
  }
  storage::write_safetensors(directory / "feature_maps.safetensors", tensors);
  const nlohmann::json description = {
      {"format", "student/1"},
      {"teacher", {{"path", run.recipe().model.path}, {"fingerprint", run.model().fingerprint()}}},
      {"attention", run.recipe().attention},
      {"softmax_layers", run.recipe().transfer.softmax_layers.layers},
      {"layers", nlohmann::json::array()}};
  storage::write_atomically(directory / "hedgerow.json", description.dump(2));
}

nlohmann::json evaluation_of(worker::RunContext& run, const std::string& subject) {
  LocalTaskContext context(run.layout(), 1000);
  wire::Task task;
  task.kind = wire::TaskKind::kEvaluate;
  task.fencing_token = 1000;
  task.subject = subject;
  if (subject != "teacher")
    task.inputs = {{.name = "student/hedgerow.json", .size = 0, .root_hash = {}}};
  return run_evaluate(run, context, task).result;
}

int main(const std::filesystem::path& root) {
  const worker::Stopwatch clock;
  const PipelineResult pipeline = run_pipeline(root);
  nlohmann::json result = {
      {"seconds", clock.seconds()}, {"blocks", pipeline.results}, {"captures", pipeline.captures}};
  result["threads"] = at::get_num_threads();
  worker::RunContext run(root);
  write_student(run, pipeline);
  if (std::filesystem::exists(root / storage::RunLayout::tokens(storage::DataStage::kEvaluate))) {
    for (const std::string subject : {"teacher", "transfer"})
      result[subject] = evaluation_of(run, subject);
  }
  std::printf("%s\n", result.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace hedgerow::tests

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: local_run RUN\n");
    return 2;
  }
  try {
    return hedgerow::tests::main(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "local_run: %s\n", error.what());
    return 1;
  }
}
