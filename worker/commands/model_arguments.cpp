#include "worker/commands/model_arguments.hpp"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>

#include "storage/base/error.hpp"
#include "worker/device/device.hpp"

namespace hedgerow::worker {

void add_model_directories(CLI::App& command, ModelArguments& given) {
  command
      .add_option(
          "--model", given.model, "Model directory, or org/name in the local Hugging Face cache")
      ->required();
  command.add_option(
      "--student", given.student, "Directory with hedgerow.json and feature_maps.safetensors");
  command.add_option("--adapter", given.adapter, "PEFT LoRA directory");
}

void add_model_options(CLI::App& command, ModelArguments& given) {
  add_model_directories(command, given);
  command.add_option("--recall-cache", given.recall_cache, kRecallCacheHelp);
  command.add_option("--device", given.device, "auto, cpu or cuda")->capture_default_str();
  command.add_option("--compute-dtype", given.compute_dtype, "auto, bf16 or fp32")
      ->capture_default_str();
  command.add_option("--threads", given.threads, "0: as many as cores");
}

at::Device begin_computing(const ModelArguments& given) {
  if (given.threads > 0) at::set_num_threads(given.threads);
  return resolve_device(given.device);
}

GivenStudent load_given(const ModelArguments& given,
                        const storage::ModelDirectory& model,
                        const at::Device& device,
                        const std::function<bool(int layer_idx)>& has) {
  GivenStudent loaded;
  storage::read_given([&] {
    if (!given.student.empty()) loaded.student = load_student(given.student, model, device, has);
    if (!given.adapter.empty()) loaded.adapter = load_adapter(given.adapter, model.config(), has);
    if (loaded.student && loaded.adapter) put_in_place(*loaded.student, loaded.adapter->trained);
  });
  if (loaded.student) set_recall_cache(*loaded.student, given.recall_cache);
  return loaded;
}

}  // namespace hedgerow::worker
