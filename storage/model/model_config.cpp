#include "storage/model/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"
#include "storage/base/strict_json.hpp"

namespace hedgerow::storage {
namespace {

using Json = nlohmann::json;

struct Family {
  const char* architecture;
  const char* model_type;
};
constexpr std::array<Family, 4> kFamilies{{
    {"LlamaForCausalLM", "llama"},
    {"MistralForCausalLM", "mistral"},
    {"Qwen2ForCausalLM", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3"},
}};
constexpr const char* kSupported =
    "LlamaForCausalLM (Llama 2, 3, 3.1, SmolLM2), MistralForCausalLM, Qwen2ForCausalLM, "
    "Qwen3ForCausalLM";

// config.json with typed access; a missing and a null key are the same, as transformers treats
// them.
class Reader {
 public:
  Reader(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kUsage, fmt::format("{}: {}", name_, what));
  }

  [[nodiscard]] const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  [[nodiscard]] int positive(const char* key) const {
    const std::optional<int> value = integer(key, 1);
    if (!value) refuse(fmt::format("the key '{}' is missing", key));
    return *value;
  }

  [[nodiscard]] std::optional<int> integer(const char* key, int least) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return as_integer(key, *value, least);
  }

  [[nodiscard]] int as_integer(const char* key, const Json& value, int least) const {
    if (!value.is_number_integer() || value < least || value > std::numeric_limits<int>::max()) {
      refuse(
          fmt::format("'{}' is {}, expected an integer of at least {}", key, shown(value), least));
    }
    return value.get<int>();
  }

  [[nodiscard]] double number(const char* key, double otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number() || !(value->get<double>() > 0.0)) {
      refuse(fmt::format("'{}' is {}, expected a positive number", key, shown(*value)));
    }
    return value->get<double>();
  }

  [[nodiscard]] bool boolean(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean())
      refuse(fmt::format("'{}' is {}, expected true or false", key, shown(*value)));
    return value->get<bool>();
  }

  [[nodiscard]] std::string text(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string())
      refuse(fmt::format("'{}' is {}, expected a string", key, shown(*value)));
    return value->get<std::string>();
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] static std::string shown(const Json& value) {
    return value.dump(-1, ' ', true).substr(0, 60);
  }

 private:
  const Json& json_;
  std::string name_;
};

void read_family(const Reader& reader, ModelConfig& config) {
  std::string architecture;
  if (const Json* list = reader.find("architectures"); list != nullptr) {
    if (!list->is_array() || list->empty() || !list->front().is_string()) {
      reader.refuse(fmt::format("'architectures' is {}, expected a list with one name",
                                Reader::shown(*list)));
    }
    architecture = list->front().get<std::string>();
  }
  const std::string model_type = reader.text("model_type", "");
  for (const Family& family : kFamilies) {
    if (architecture == family.architecture ||
        (architecture.empty() && model_type == family.model_type)) {
      config.architecture = family.architecture;
      config.model_type = family.model_type;
    }
  }
  if (config.architecture.empty()) {
    reader.refuse(fmt::format("architecture {} is not supported; supported are {}",
                              architecture.empty()
                                  ? "(none named) of model_type '" + model_type + "'"
                                  : "'" + architecture + "'",
                              kSupported));
  }
  if (!model_type.empty() && model_type != config.model_type) {
    reader.refuse(fmt::format("model_type '{}' does not belong to architecture '{}', expected '{}'",
                              model_type,
                              config.architecture,
                              config.model_type));
  }
}

// What we would compute otherwise than transformers is refused, never ignored.
void refuse_unsupported_variants(const Reader& reader) {
  const std::string activation = reader.text("hidden_act", "silu");
  if (activation != "silu") {
    reader.refuse(fmt::format("hidden_act '{}' is not supported; supported is 'silu'", activation));
  }
  if (reader.find("quantization_config") != nullptr) {
    reader.refuse(
        "the weights are quantised (quantization_config); save them as bfloat16 with transformers "
        "first");
  }
  if (reader.number("partial_rotary_factor", 1.0) != 1.0) {
    reader.refuse("partial_rotary_factor other than 1 is not supported");
  }
}

// transformers 5 writes rope_parameters (theta inside); earlier releases write rope_theta and
// rope_scaling.
RopeConfig read_rope(const Reader& reader, int max_position_embeddings) {
  RopeConfig rope;
  rope.theta = reader.number("rope_theta", rope.theta);
  const Json* scaling = reader.find("rope_parameters");
  if (scaling == nullptr) scaling = reader.find("rope_scaling");
  if (scaling == nullptr) return rope;
  if (!scaling->is_object()) reader.refuse("rope_scaling is not an object");
  const Reader inner(*scaling, reader.name() + ", rope_scaling");
  rope.theta = inner.number("rope_theta", rope.theta);
  const std::string kind = inner.text("rope_type", inner.text("type", "default").c_str());
  if (kind == "default") return rope;
  if (kind != "linear" && kind != "llama3") {
    reader.refuse(fmt::format(
        "rope_type '{}' is not supported; supported are default, linear, llama3", kind));
  }
  rope.kind = kind == "linear" ? RopeConfig::Kind::kLinear : RopeConfig::Kind::kLlama3;
  if (inner.find("factor") == nullptr) inner.refuse("the key 'factor' is missing");
  rope.factor = inner.number("factor", 1.0);
  if (rope.kind == RopeConfig::Kind::kLlama3) {
    for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
      if (inner.find(key) == nullptr) inner.refuse(fmt::format("the key '{}' is missing", key));
    }
    rope.low_freq_factor = inner.number("low_freq_factor", 1.0);
    rope.high_freq_factor = inner.number("high_freq_factor", 4.0);
    rope.original_max_position_embeddings =
        inner.integer("original_max_position_embeddings", 1).value_or(max_position_embeddings);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      inner.refuse("high_freq_factor must be greater than low_freq_factor");
    }
  }
  return rope;
}

void read_heads(const Reader& reader, ModelConfig& config) {
  config.num_attention_heads = reader.positive("num_attention_heads");
  config.num_key_value_heads =
      reader.integer("num_key_value_heads", 1).value_or(config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    reader.refuse(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                              config.num_attention_heads,
                              config.num_key_value_heads));
  }
  const std::optional<int> head_dim = reader.integer("head_dim", 1);
  if (!head_dim && config.model_type == "qwen3") {
    config.head_dim = 128;  // Qwen3's class default, not hidden_size / num_attention_heads
  } else if (!head_dim && config.hidden_size % config.num_attention_heads != 0) {
    reader.refuse(fmt::format(
        "hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is missing",
        config.hidden_size,
        config.num_attention_heads));
  } else {
    config.head_dim = head_dim.value_or(config.hidden_size / config.num_attention_heads);
  }
  if (config.head_dim % 2 != 0)
    reader.refuse(fmt::format("head_dim {} is odd, RoPE needs pairs", config.head_dim));
}

// The narrowest window any layer of the teacher has; none if every layer sees everything.
std::optional<int> read_sliding_window(const Reader& reader,
                                       const ModelConfig& config,
                                       const Json& json) {
  if (config.model_type == "llama") return std::nullopt;
  if (config.model_type == "mistral") {
    return json.contains("sliding_window") ? reader.integer("sliding_window", 1)
                                           : std::optional<int>(4096);
  }
  if (!reader.boolean("use_sliding_window", false)) return std::nullopt;
  if (reader.integer("max_window_layers", 0).value_or(28) >= config.num_hidden_layers)
    return std::nullopt;
  return reader.integer("sliding_window", 1).value_or(4096);
}

void read_special_tokens(const Reader& reader, ModelConfig& config) {
  config.bos_token_id = reader.integer("bos_token_id", 0);
  const Json* eos = reader.find("eos_token_id");
  if (eos == nullptr) return;
  const Json list = eos->is_array() ? *eos : Json::array({*eos});
  for (const Json& id : list)
    config.eos_token_ids.push_back(reader.as_integer("eos_token_id", id, 0));
}

}  // namespace

ModelConfig ModelConfig::parse(const std::string& config_json, const std::string& name) {
  const Json json = parse_strict_json(config_json, name);
  if (!json.is_object()) throw Error(ErrorKind::kCorrupt, name + ": not a JSON object");
  const Reader reader(json, name);
  ModelConfig config;
  read_family(reader, config);
  refuse_unsupported_variants(reader);
  config.dtype = reader.text("dtype", reader.text("torch_dtype", "").c_str());
  config.vocab_size = reader.positive("vocab_size");
  config.hidden_size = reader.positive("hidden_size");
  config.intermediate_size = reader.positive("intermediate_size");
  config.num_hidden_layers = reader.positive("num_hidden_layers");
  config.max_position_embeddings = reader.positive("max_position_embeddings");
  config.rms_norm_eps = reader.number("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  read_heads(reader, config);
  const bool attention_bias = reader.boolean("attention_bias", false);
  if (config.model_type == "llama" || config.model_type == "qwen3") {
    config.qkv_bias = config.o_bias = attention_bias;
  } else {
    config.qkv_bias = config.model_type == "qwen2";
  }
  config.mlp_bias = config.model_type == "llama" && reader.boolean("mlp_bias", false);
  config.qk_norm = config.model_type == "qwen3";
  config.sliding_window = read_sliding_window(reader, config, json);
  config.rope = read_rope(reader, config.max_position_embeddings);
  read_special_tokens(reader, config);
  return config;
}

void ModelConfig::require_within_window(std::int64_t num_tokens, const std::string& what) const {
  if (!sliding_window || num_tokens <= *sliding_window) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{} is beyond the teacher's own attention window of {}, which is not "
                          "computed; use at most that",
                          what,
                          *sliding_window));
}

std::vector<TensorShape> layer_tensors(const ModelConfig& config, int layer_idx) {
  const std::string prefix = fmt::format("model.layers.{}.", layer_idx);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t intermediate = config.intermediate_size;
  const std::int64_t head_dim = config.head_dim;
  const std::int64_t q_rows = config.num_attention_heads * head_dim;
  const std::int64_t kv_rows = config.num_key_value_heads * head_dim;
  std::vector<TensorShape> tensors;
  const auto linear = [&](const char* module, std::int64_t rows, std::int64_t columns, bool bias) {
    tensors.push_back({prefix + module + ".weight", {rows, columns}});
    if (bias) tensors.push_back({prefix + module + ".bias", {rows}});
  };
  tensors.push_back({prefix + "input_layernorm.weight", {hidden}});
  linear("self_attn.q_proj", q_rows, hidden, config.qkv_bias);
  linear("self_attn.k_proj", kv_rows, hidden, config.qkv_bias);
  linear("self_attn.v_proj", kv_rows, hidden, config.qkv_bias);
  linear("self_attn.o_proj", hidden, q_rows, config.o_bias);
  if (config.qk_norm) {
    tensors.push_back({prefix + "self_attn.q_norm.weight", {head_dim}});
    tensors.push_back({prefix + "self_attn.k_norm.weight", {head_dim}});
  }
  tensors.push_back({prefix + "post_attention_layernorm.weight", {hidden}});
  linear("mlp.gate_proj", intermediate, hidden, config.mlp_bias);
  linear("mlp.up_proj", intermediate, hidden, config.mlp_bias);
  linear("mlp.down_proj", hidden, intermediate, config.mlp_bias);
  return tensors;
}

std::vector<TensorShape> outer_tensors(const ModelConfig& config) {
  std::vector<TensorShape> tensors{
      {"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}},
      {"model.norm.weight", {config.hidden_size}}};
  if (!config.tie_word_embeddings) {
    tensors.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}});
  }
  return tensors;
}

}  // namespace hedgerow::storage
