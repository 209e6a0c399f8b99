#include "worker/model/merge.hpp"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <set>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Base names: ModelDirectory::open has checked that an index names nothing else.
std::set<std::string> weight_files(const fs::path& directory) {
  if (!fs::exists(directory / kIndexFile)) return {kSingleFile};
  std::set<std::string> files;
  const auto index = nlohmann::json::parse(storage::read_text(directory / kIndexFile));
  for (const auto& [tensor, file] : index.at("weight_map").items())
    files.insert(file.get<std::string>());
  return files;
}

}  // namespace

void write_merged(const storage::ModelDirectory& model,
                  const LoraAdapter& adapter,
                  const fs::path& out,
                  std::optional<at::ScalarType> compute_dtype,
                  const std::function<void(double)>& progress) {
  fs::create_directories(out);
  if (fs::equivalent(out, model.path()) || fs::exists(out / kSingleFile) ||
      fs::exists(out / kIndexFile)) {
    throw Error(ErrorKind::kUsage,
                out.string() + " already holds weights; name an empty directory");
  }
  std::map<std::string, const LoraPair*> targets;
  for (std::size_t layer = 0; layer < adapter.layers.size(); ++layer) {
    for (const auto& [module, pair] : adapter.layers[layer]) {
      targets[storage::layer_prefix(static_cast<int>(layer)) + storage::module_name(module).path() +
              ".weight"] = &pair;
    }
  }
  std::size_t num_merged = 0;
  const std::set<std::string> names = weight_files(model.path());
  double bytes_in_all = 0.0, bytes_done = 0.0;
  for (const auto& name : names)
    bytes_in_all += static_cast<double>(fs::file_size(model.path() / name));
  const auto report = [&](double bytes) {
    if (progress) progress(bytes / bytes_in_all);
  };
  for (const auto& name : names) {
    const auto file_bytes = static_cast<double>(fs::file_size(model.path() / name));
    const storage::SafetensorsFile file(model.path() / name);
    auto tensors = file.tensors();
    std::size_t num_seen = 0;
    std::vector<at::Tensor> merged;  // keeps the bytes that the views show
    for (auto& [tensor, view] : tensors) {
      // Half of a file's work is the merging, half the writing.
      report(bytes_done + 0.5 * file_bytes * static_cast<double>(num_seen++) /
                              static_cast<double>(tensors.size()));
      if (const auto norm = adapter.trained.find(tensor); norm != adapter.trained.end()) {
        view = view_of(norm->second);
        continue;
      }
      const auto target = targets.find(tensor);
      if (target == targets.end()) continue;
      const at::Tensor weight = to_tensor(view);
      merged.push_back(merged_weight(weight.to(compute_dtype.value_or(weight.scalar_type())),
                                     *target->second,
                                     adapter.scaling()));
      view = view_of(merged.back());
      ++num_merged;
    }
    storage::write_safetensors(out / name, tensors, file.metadata());
    bytes_done += file_bytes;
    report(bytes_done);
  }
  if (num_merged != targets.size()) {
    throw Error(ErrorKind::kCorrupt,
                model.path().string() + ": only " + std::to_string(num_merged) +
                    " of the adapter's " + std::to_string(targets.size()) +
                    " targets are in the model's files");
  }
  if (fs::exists(model.path() / kIndexFile))
    fs::copy_file(model.path() / kIndexFile, out / kIndexFile);
}

}  // namespace hedgerow::worker
