#include "worker/model/trained_parts.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "storage/base/error.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
namespace fs = std::filesystem;

constexpr const char* kFile = "trained_parameters.safetensors";

void add(std::vector<TrainedPart>& parts,
         const std::string& name,
         const char* group,
         at::Tensor& value,
         int layer_idx = -1) {
  if (value.defined()) parts.push_back({name, group, value.sizes().vec(), &value, layer_idx});
}

bool is_of_attention(const std::string& name) {
  return name.find(".self_attn.feature_map_") != std::string::npos ||
         name.ends_with(".window_factors");
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorKind::kCorrupt,
              std::string(kFile) + ": tensor " + name + " " + what +
                  "; the adapter is of another student, name the right one");
}

}  // namespace

std::vector<TrainedPart> parts_of(kernels::HybridParameters& parameters, int layer_idx) {
  const std::string prefix = storage::layer_prefix(layer_idx) + "self_attn.";
  std::vector<TrainedPart> parts;
  add(parts, prefix + "feature_map_q.mlp.layer", "maps", parameters.q.layer, layer_idx);
  add(parts, prefix + "feature_map_q.mlp.bias", "maps", parameters.q.bias, layer_idx);
  add(parts, prefix + "feature_map_k.mlp.layer", "maps", parameters.k.layer, layer_idx);
  add(parts, prefix + "feature_map_k.mlp.bias", "maps", parameters.k.bias, layer_idx);
  at::Tensor& factors = parameters.window_factors;
  if (factors.defined()) {
    parts.push_back({prefix + "window_factors",
                     "window_factors",
                     {1, factors.size(0), 1, 1},
                     &factors,
                     layer_idx});
  }
  return parts;
}

std::vector<TrainedPart> parts_of(LayerWeights& layer,
                                  const storage::ModelConfig& config,
                                  int layer_idx) {
  const auto slots = storage::layer_slots(config);
  std::vector<TrainedPart> parts;
  for (const NormSlot& norm : kNorms) {
    const auto slot = std::ranges::find(slots, norm.slot, &storage::LayerTensor::slot);
    if (slot == slots.end()) continue;
    const std::string name = storage::layer_prefix(layer_idx) + slot->name;
    add(parts, name, "norms", layer.*norm.norm, layer_idx);
  }
  return parts;
}

std::vector<TrainedPart> parts_of(OuterWeights& outer) {
  std::vector<TrainedPart> parts;
  add(parts, "model.norm.weight", "norms", outer.final_norm);
  return parts;
}

TrainedTensors load_trained(const fs::path& directory,
                            const storage::ModelConfig& config,
                            const std::function<bool(int layer_idx)>& has) {
  if (!fs::exists(directory / kFile)) return {};
  std::map<std::string, std::vector<std::int64_t>> norms;
  const auto collect = [&](const std::vector<storage::TensorShape>& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.name.ends_with("norm.weight")) norms[tensor.name] = tensor.shape;
    }
  };
  for (int layer = 0; layer < config.num_hidden_layers; ++layer)
    collect(storage::layer_tensors(config, layer));
  collect(storage::outer_tensors(config));
  std::set<std::string> elsewhere;  // the layers of other ranks, by "model.layers.7."
  for (int layer = 0; has && layer < config.num_hidden_layers; ++layer) {
    if (!has(layer)) elsewhere.insert(storage::layer_prefix(layer));
  }
  TrainedTensors tensors;
  const storage::SafetensorsFile file(directory / kFile);
  for (const auto& [name, view] : file.tensors()) {
    if (!is_of_attention(name)) {
      const auto norm = norms.find(name);
      if (norm == norms.end()) refuse(name, "is not a norm of the model");
      if (norm->second != view.shape) refuse(name, "has another shape than the model's");
    }
    if (view.dtype != storage::DType::kF32) refuse(name, "is not fp32");
    const std::size_t end = name.find('.', std::string_view("model.layers.").size());
    if (end != std::string::npos && elsewhere.contains(name.substr(0, end + 1))) continue;
    tensors[name] = to_tensor(view);
  }
  return tensors;
}

void save_trained(const fs::path& directory, const TrainedTensors& tensors) {
  std::map<std::string, storage::TensorView> views;
  for (const auto& [name, tensor] : tensors) views[name] = view_of(tensor);
  storage::write_safetensors(directory / kFile, views, {{"format", "pt"}});
}

void put_in_place(const std::vector<TrainedPart>& parts, const TrainedTensors& tensors) {
  for (const TrainedPart& part : parts) {
    const auto found = tensors.find(part.name);
    if (found == tensors.end()) continue;
    if (found->second.sizes().vec() != part.shape)
      refuse(part.name, "has another shape than the student's");
    *part.value = found->second.reshape(part.value->sizes()).to(part.value->device());
  }
}

void put_in_place(Student& student, const TrainedTensors& tensors) {
  TrainedTensors unused = tensors;
  for (std::size_t i = 0; i < student.layers.size(); ++i) {
    if (!student.layers[i]) continue;
    const auto parts = parts_of(*student.layers[i], static_cast<int>(i));
    put_in_place(parts, tensors);
    for (const TrainedPart& part : parts) unused.erase(part.name);
  }
  for (const auto& [name, tensor] : unused) {
    if (is_of_attention(name)) refuse(name, "is not in " + student.name);
  }
}

}  // namespace hedgerow::worker
