#include "worker/model/peft_config.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <string_view>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "worker/model/lora.hpp"

namespace hedgerow::worker {
namespace {

using Json = nlohmann::json;
using storage::Error;
using storage::ErrorKind;

constexpr std::size_t kMaxConfigBytes = 1U << 20;
// Keys of PEFT 0.21, whatever their value: they say where the adapter comes from, how its matrices
// began, or belong to a feature that another key turns on.
constexpr std::array kHarmless = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "init_lora_weights",
    "bias",
    "ensure_weight_tying",
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorKind::kUsage, path.string() + ": " + what);
}

bool is_neutral(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

void refuse_other_computations(const Json& config, const std::filesystem::path& path) {
  for (const auto& [key, value] : config.items()) {
    const bool is_harmless = std::ranges::find(kHarmless, key) != kHarmless.end();
    if (!is_harmless && !is_neutral(value)) {
      refuse(path, key + " = " + value.dump(-1, ' ', true).substr(0, 60) + " is not supported");
    }
  }
  const Json type = config.value("peft_type", Json("LORA"));
  if (type != "LORA") refuse(path, "peft_type " + type.dump() + " is not supported, LORA is");
  const Json bias = config.value("bias", Json("none"));
  if (bias != "none" && !bias.is_null())
    refuse(path, "bias = " + bias.dump() + " is not supported; expected \"none\"");
  // The others ("pissa", "olora", "corda", "loftq") change the base's weights when PEFT loads them.
  const Json start = config.value("init_lora_weights", Json(true));
  const bool leaves_base =
      start.is_boolean() || start == "gaussian" || start == "eva" || start == "orthogonal";
  if (!leaves_base) {
    refuse(path,
           "init_lora_weights = " + start.dump() +
               " is not supported: PEFT changes the base's weights by it; convert the adapter to "
               "plain LoRA (path_initial_model_for_weight_conversion)");
  }
}

using Matches = std::function<bool(const std::string& module)>;

// A module's own name, or what stands behind a dot in it.
bool is_named(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

// PEFT's rule for "all-linear": every linear layer but the head.
Matches matcher_of(const Json& targets, const std::filesystem::path& path) {
  if (targets == "all-linear")
    return [](const std::string& module) { return module.starts_with("model.layers."); };
  if (targets.is_string()) {
    try {
      const std::regex pattern(targets.get<std::string>());
      return [pattern](const std::string& module) { return std::regex_match(module, pattern); };
    } catch (const std::regex_error&) {
      refuse(path,
             "target_modules = " + targets.dump() +
                 " is no regular expression that is understood here; give a list of names");
    }
  }
  const auto names = targets.get<std::vector<std::string>>();
  return [names](const std::string& module) {
    return std::ranges::any_of(names, [&](const auto& name) { return is_named(module, name); });
  };
}

// What is asked for besides projections of decoder layers.
void refuse_other_targets(const Json& targets,
                          const Matches& matches,
                          int num_layers,
                          const std::filesystem::path& path) {
  std::string computed = " is not supported: LoRA is computed in ";
  const std::span<const storage::ModuleName> modules = storage::module_names();
  for (const storage::ModuleName& module : modules) {
    if (&module != &modules.front()) computed += &module == &modules.back() ? " and " : ", ";
    computed += module.name;
  }
  computed += " of the decoder layers";
  for (const std::string module : {"lm_head", "model.embed_tokens"}) {
    if (matches(module)) refuse(path, "target_modules: " + module + computed);
  }
  if (!targets.is_array()) return;
  for (const auto& target : targets) {
    const auto name = target.get<std::string>();
    bool is_known = false;
    for (int layer = 0; layer < num_layers && !is_known; ++layer) {
      is_known = std::ranges::any_of(storage::module_names(), [&](const auto& module) {
        return is_named(storage::layer_prefix(layer) + module.path(), name);
      });
    }
    if (!is_known) refuse(path, "target_modules: '" + name + "'" + computed);
  }
}

}  // namespace

PeftConfig read_peft_config(const std::filesystem::path& path, const storage::ModelConfig& model) {
  PeftConfig adapter;
  try {
    const Json config = Json::parse(storage::read_text(path, kMaxConfigBytes));
    refuse_other_computations(config, path);
    if (!config.at("r").is_number_integer())
      throw Error(ErrorKind::kCorrupt, path.string() + ": r must be a whole number");
    config.at("r").get_to(adapter.rank);
    config.at("lora_alpha").get_to(adapter.alpha);
    const Json& targets = config.at("target_modules");
    const Matches matches = matcher_of(targets, path);
    refuse_other_targets(targets, matches, model.num_hidden_layers, path);
    for (int layer = 0; layer < model.num_hidden_layers; ++layer) {
      auto& modules = adapter.targets.emplace_back();
      for (const storage::ModuleName& module : storage::module_names()) {
        if (matches(storage::layer_prefix(layer) + module.path()))
          modules.emplace_back(module.name);
      }
    }
    if (std::ranges::all_of(adapter.targets, &std::vector<std::string>::empty)) {
      refuse(path, "target_modules = " + targets.dump() + " names no module of this model");
    }
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kCorrupt,
                path.string() + ": not a PEFT adapter configuration: " + error.what());
  }
  if (adapter.rank < 1) throw Error(ErrorKind::kCorrupt, path.string() + ": r must be at least 1");
  return adapter;
}

}  // namespace hedgerow::worker
