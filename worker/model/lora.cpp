#include "worker/model/lora.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "storage/base/error.hpp"
#include "storage/base/philox.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/model/peft_config.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
namespace fs = std::filesystem;

// Philox stream family of LoRA starts: apart from the feature maps' and the sampler's at equal
// (seed, layer).
constexpr std::uint32_t kLoraStream = 0x4c6f5241;

int module_index(const std::string& module) {
  return static_cast<int>(&storage::module_name(module) - storage::module_names().data());
}

std::vector<std::string> in_fixed_order(std::vector<std::string> modules) {
  std::ranges::sort(modules, {}, module_index);
  return modules;
}

// Undefined if it is only checked.
at::Tensor read_matrix(const storage::SafetensorsFile& file,
                       const fs::path& path,
                       const std::string& name,
                       std::int64_t rows,
                       std::int64_t columns,
                       bool is_held) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end())
    throw Error(ErrorKind::kCorrupt, path.string() + ": tensor " + name + " is missing");
  const storage::TensorView& view = found->second;
  if (view.shape != std::vector<std::int64_t>{rows, columns} ||
      !at::isFloatingType(scalar_type(view.dtype))) {
    throw Error(ErrorKind::kCorrupt,
                path.string() + ": tensor " + name + ": expected [" + std::to_string(rows) + ", " +
                    std::to_string(columns) + "] floating point, found another shape or dtype");
  }
  return is_held ? to_tensor(view).to(at::kFloat) : at::Tensor();
}

}  // namespace

const LoraPair* LoraAdapter::find(int layer_idx, const std::string& module) const {
  const auto& modules = layers.at(static_cast<std::size_t>(layer_idx));
  const auto found = modules.find(module);
  return found == modules.end() ? nullptr : &found->second;
}

LayerLora LoraAdapter::of_layer(int layer_idx) const {
  LayerLora lora{rank, scaling()};
  for (const auto& [module, pair] : layers.at(static_cast<std::size_t>(layer_idx)))
    lora.pairs.emplace(storage::module_name(module).slot, pair);
  return lora;
}

LoraAdapter start_adapter(const storage::ModelConfig& config,
                          const storage::FinetuneSection& finetune,
                          std::uint64_t seed,
                          const std::function<bool(int layer_idx)>& has) {
  LoraAdapter adapter{finetune.rank, finetune.alpha, in_fixed_order(finetune.target_modules), {}};
  adapter.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  for (std::size_t layer = 0; layer < adapter.layers.size(); ++layer) {
    if (has && !has(static_cast<int>(layer))) continue;
    for (const auto& module : adapter.target_modules) {
      const auto [slot, parent, name, out, in, has_bias] = storage::linear_module(config, module);
      at::Tensor a = at::empty({adapter.rank, in}, at::kFloat);
      storage::PhiloxStream stream(seed,
                                   kLoraStream,
                                   static_cast<std::uint32_t>(layer),
                                   static_cast<std::uint32_t>(module_index(module)));
      const double bound = std::sqrt(1.0 / static_cast<double>(in));
      std::generate_n(a.mutable_data_ptr<float>(), a.numel(), [&] {
        return static_cast<float>((2.0 * stream.uniform() - 1.0) * bound);
      });
      adapter.layers[layer][module] = {a, at::zeros({out, adapter.rank}, at::kFloat)};
    }
  }
  return adapter;
}

std::string lora_name(int layer_idx, const std::string& module, const std::string& matrix) {
  return "base_model.model." + storage::layer_prefix(layer_idx) +
         storage::module_name(module).path() + "." + matrix + ".weight";
}

nlohmann::json adapter_config(const LoraAdapter& adapter, const std::string& base_model) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base_model},
          {"r", adapter.rank},
          {"lora_alpha", adapter.alpha},
          {"lora_dropout", 0.0},
          {"target_modules", adapter.target_modules},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"modules_to_save", nullptr}};
}

void save_adapter(const fs::path& directory,
                  const LoraAdapter& adapter,
                  const std::string& base_model) {
  std::map<std::string, storage::TensorView> tensors;
  std::vector<at::Tensor> on_cpu;  // keeps the bytes that the views show
  for (std::size_t layer = 0; layer < adapter.layers.size(); ++layer) {
    for (const auto& [module, pair] : adapter.layers[layer]) {
      for (const auto& [matrix, value] : {std::pair{"lora_A", &pair.a}, {"lora_B", &pair.b}}) {
        on_cpu.push_back(value->cpu());
        tensors[lora_name(static_cast<int>(layer), module, matrix)] = view_of(on_cpu.back());
      }
    }
  }
  storage::write_safetensors(directory / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  storage::write_atomically(directory / "adapter_config.json",
                            adapter_config(adapter, base_model).dump(2) + "\n");
}

LoraAdapter load_adapter(const fs::path& directory,
                         const storage::ModelConfig& config,
                         const std::function<bool(int layer_idx)>& has) {
  const PeftConfig peft = read_peft_config(directory / "adapter_config.json", config);
  LoraAdapter adapter{peft.rank, peft.alpha, {}, {}};
  adapter.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  const fs::path path = directory / "adapter_model.safetensors";
  const storage::SafetensorsFile file(path);
  std::set<std::string> expected, modules;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool is_held = !has || has(layer);
    for (const auto& module : peft.targets[static_cast<std::size_t>(layer)]) {
      const auto [slot, parent, name, out, in, has_bias] = storage::linear_module(config, module);
      const std::string a = lora_name(layer, module, "lora_A"),
                        b = lora_name(layer, module, "lora_B");
      LoraPair pair{read_matrix(file, path, a, adapter.rank, in, is_held),
                    read_matrix(file, path, b, out, adapter.rank, is_held)};
      if (is_held) adapter.layers[static_cast<std::size_t>(layer)][module] = std::move(pair);
      expected.insert({a, b});
      modules.insert(module);
    }
  }
  for (const auto& [name, view] : file.tensors()) {
    if (!expected.contains(name)) {
      throw Error(ErrorKind::kCorrupt,
                  path.string() + ": surplus tensor " + name +
                      " is of no module that target_modules of its adapter_config.json names; the "
                      "two do not belong together, or the model has fewer layers");
    }
  }
  adapter.target_modules = in_fixed_order({modules.begin(), modules.end()});
  adapter.trained = load_trained(directory, config, has);
  return adapter;
}

at::Tensor merged_weight(const at::Tensor& weight, const LoraPair& pair, double scaling) {
  return at::addmm(weight.to(at::kFloat),
                   pair.b.to(weight.device()),
                   pair.a.to(weight.device()),
                   1.0,
                   scaling)
      .to(weight.scalar_type());
}

void merge_into(LayerWeights& layer,
                const LoraAdapter& adapter,
                int layer_idx,
                const storage::ModelConfig& config) {
  const LayerLora lora = adapter.of_layer(layer_idx);
  for (const ProductSlots& product : kProducts) {
    FrozenProduct& frozen = layer.*product.product;
    std::vector<at::Tensor> rows;
    std::int64_t begin = 0;
    bool is_merged = false;
    for (const storage::Slot slot : product.all()) {
      const std::int64_t out = storage::linear_module(config, slot).rows;
      const at::Tensor weight = frozen.weight().narrow(0, begin, out);
      begin += out;
      const auto pair = lora.pairs.find(slot);
      is_merged |= pair != lora.pairs.end();
      rows.push_back(pair == lora.pairs.end() ? weight
                                              : merged_weight(weight, pair->second, lora.scaling));
    }
    if (is_merged)
      frozen = FrozenProduct(rows.size() == 1 ? rows.front() : at::cat(rows), frozen.bias());
  }
  put_in_place(parts_of(layer, config, layer_idx), adapter.trained);
}

}  // namespace hedgerow::worker
