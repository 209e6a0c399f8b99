#include "storage/model/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"
#include "storage/json/strict_json.hpp"

namespace hedgerow::storage {
namespace {

using Json = nlohmann::json;

std::string supported() {
  std::string list;
  for (const Architecture& row : architectures()) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", row.name);
    if (!row.models.empty()) list += fmt::format(" ({})", row.models);
  }
  return list;
}

// config.json with typed access; a missing and a null key are the same but where is_null() is
// asked.
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

  // Present, and null: transformers takes no default then.
  [[nodiscard]] bool is_null(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_null();
  }
  void refuse_null(const char* key) const {
    if (is_null(key)) refuse(fmt::format("'{}' is null; give its value, or leave it out", key));
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

const Architecture& read_architecture(const Reader& reader, ModelConfig& config) {
  std::string architecture;
  if (const Json* list = reader.find("architectures"); list != nullptr) {
    if (!list->is_array() || list->empty() || !list->front().is_string()) {
      reader.refuse(fmt::format("'architectures' is {}, expected a list with one name",
                                Reader::shown(*list)));
    }
    architecture = list->front().get<std::string>();
  }
  const std::string model_type = reader.text("model_type", "");
  for (const Architecture& family : architectures()) {
    if (architecture != family.name && !(architecture.empty() && model_type == family.model_type)) {
      continue;
    }
    config.architecture = family.name;
    config.model_type = family.model_type;
    if (!model_type.empty() && model_type != config.model_type) {
      reader.refuse(
          fmt::format("model_type '{}' does not belong to architecture '{}', expected '{}'",
                      model_type,
                      config.architecture,
                      config.model_type));
    }
    return family;
  }
  reader.refuse(fmt::format("architectures: {} is not supported; supported are {}",
                            architecture.empty() ? "(none named) of model_type '" + model_type + "'"
                                                 : "'" + architecture + "'",
                            supported()));
}

void refuse_partial_rotation(const Reader& reader) {
  if (reader.number("partial_rotary_factor", 1.0) != 1.0)
    reader.refuse("partial_rotary_factor other than 1 is not supported");
}

// What we would compute otherwise than transformers is refused, never ignored. The keys are those
// that the classes, or what they share (masks, RoPE, loading), look at.
void refuse_unsupported_variants(const Reader& reader) {
  const std::string activation = reader.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {  // two names of one function
    reader.refuse(fmt::format("hidden_act '{}' is not supported; supported is 'silu'", activation));
  }
  if (reader.find("quantization_config") != nullptr) {
    reader.refuse(
        "the weights are quantised (quantization_config); save them as bfloat16 with transformers "
        "first");
  }
  refuse_partial_rotation(reader);
  if (!reader.boolean("is_causal", true))
    reader.refuse("is_causal = false is not supported: attention here is causal");
  if (const Json* layers = reader.find("per_layer_config"); layers != nullptr && !layers->empty())
    reader.refuse("per_layer_config is not supported: all layers have one configuration here");
}

// The class is LlamaRotaryEmbedding's and its copies'. transformers 5 writes rope_parameters (theta
// inside); earlier releases write rope_theta and rope_scaling, which goes before where both stand.
RopeConfig read_rope(const Reader& reader,
                     const Architecture& family,
                     int max_position_embeddings) {
  RopeConfig rope;
  rope.theta = family.rope_theta;
  reader.refuse_null("rope_theta");
  rope.theta = reader.number("rope_theta", rope.theta);
  const char* key = "rope_scaling";
  const Json* scaling = reader.find(key);
  if (scaling == nullptr || scaling->empty()) {
    key = "rope_parameters";
    scaling = reader.find(key);
  }
  if (scaling == nullptr) return rope;
  if (!scaling->is_object()) reader.refuse(fmt::format("{} is not an object", key));
  const Reader inner(*scaling, reader.name() + ", " + key);
  for (const char* never : {"rope_theta", "rope_type"}) inner.refuse_null(never);
  for (const auto& [name, value] : scaling->items()) {
    if (value.is_object())
      inner.refuse(
          fmt::format("'{}' is an object: RoPE of each type of layer is not supported", name));
  }
  refuse_partial_rotation(inner);
  rope.theta = inner.number("rope_theta", rope.theta);
  const std::string kind = inner.text("rope_type", inner.text("type", "default").c_str());
  if (kind == "default") return rope;
  if (kind != "linear" && kind != "llama3") {
    inner.refuse(fmt::format(
        "rope_type '{}' is not supported; supported are default, linear, llama3", kind));
  }
  rope.kind = kind == "linear" ? RopeConfig::Kind::kLinear : RopeConfig::Kind::kLlama3;
  if (inner.find("factor") == nullptr) inner.refuse("the key 'factor' is missing");
  rope.factor = inner.number("factor", 1.0);
  if (rope.kind == RopeConfig::Kind::kLlama3) {
    for (const char* needed : {"low_freq_factor", "high_freq_factor"}) {
      if (inner.find(needed) == nullptr)
        inner.refuse(fmt::format("the key '{}' is missing", needed));
    }
    rope.low_freq_factor = inner.number("low_freq_factor", 1.0);
    rope.high_freq_factor = inner.number("high_freq_factor", 4.0);
    // Beside the object, as Phi 3 writes it, it goes before.
    constexpr const char* kOriginal = "original_max_position_embeddings";
    for (const Reader& place : {reader, inner}) place.refuse_null(kOriginal);
    rope.original_max_position_embeddings =
        reader.integer(kOriginal, 1)
            .value_or(inner.integer(kOriginal, 1).value_or(max_position_embeddings));
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      inner.refuse("high_freq_factor must be greater than low_freq_factor");
    }
  }
  return rope;
}

void read_heads(const Reader& reader, const Architecture& family, ModelConfig& config) {
  config.num_attention_heads = reader.positive("num_attention_heads");
  const bool takes_default =
      family.num_key_value_heads > 0 && !reader.is_null("num_key_value_heads");
  config.num_key_value_heads =
      reader.integer("num_key_value_heads", 1)
          .value_or(takes_default ? family.num_key_value_heads : config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    reader.refuse(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                              config.num_attention_heads,
                              config.num_key_value_heads));
  }
  if (!family.takes_null_head_dim) reader.refuse_null("head_dim");
  const std::optional<int> head_dim = reader.integer("head_dim", 1);
  if (!head_dim && family.head_dim > 0) {
    config.head_dim = family.head_dim;
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

// Null if there are none.
const Json* layer_types(const Reader& reader, int num_layers) {
  const Json* types = reader.find("layer_types");
  if (types == nullptr) return nullptr;
  if (!types->is_array() || types->size() != static_cast<std::size_t>(num_layers)) {
    reader.refuse(fmt::format("'layer_types' is {}, expected one for each of {} layers",
                              Reader::shown(*types),
                              num_layers));
  }
  return types;
}

// Those that layer_types names.
std::vector<int> sliding_types(const Reader& reader, const Json& types) {
  std::vector<int> sliding;
  for (int i = 0; i < static_cast<int>(types.size()); ++i) {
    const Json& type = types[static_cast<std::size_t>(i)];
    if (type == "sliding_attention") {
      sliding.push_back(i);
    } else if (type != "full_attention" && type != "attention") {
      reader.refuse(
          fmt::format("layer_types names {} for layer {}; supported are "
                      "full_attention and sliding_attention",
                      Reader::shown(type),
                      i));
    }
  }
  return sliding;
}

std::vector<int> layers_from(int first, int num_layers) {
  std::vector<int> layers;
  for (int i = first; i < num_layers; ++i) layers.push_back(i);
  return layers;
}

std::vector<int> read_sliding_layers(const Reader& reader,
                                     const Architecture& family,
                                     const ModelConfig& config,
                                     bool has_window) {
  using Sliding = Architecture::Sliding;
  const int num_layers = config.num_hidden_layers;
  const Json* types = layer_types(reader, num_layers);
  if (family.sliding == Sliding::kNever) return {};
  if (family.sliding == Sliding::kAllLayers) {
    if (types != nullptr)
      reader.refuse("layer_types is not supported with this architecture; take it out");
    return has_window ? layers_from(0, num_layers) : std::vector<int>{};
  }
  const bool uses_window = reader.boolean("use_sliding_window", false) && has_window;
  if (types != nullptr) {
    std::vector<int> sliding = sliding_types(reader, *types);
    const bool has_width = family.sliding == Sliding::kWithoutRope ? has_window : uses_window;
    if (!sliding.empty() && !has_width) {
      reader.refuse(
          "layer_types has sliding_attention, but use_sliding_window and sliding_window give it no "
          "window");
    }
    return sliding;
  }
  if (!uses_window) return {};
  if (family.sliding == Sliding::kWithoutRope) return config.layers_without_rope;
  return layers_from(reader.integer("max_window_layers", 0).value_or(28), num_layers);
}

void read_sliding_window(const Reader& reader, const Architecture& family, ModelConfig& config) {
  std::optional<int> window;
  if (family.sliding != Architecture::Sliding::kNever && !reader.is_null("sliding_window")) {
    window = reader.integer("sliding_window", 1);
    if (!window && family.sliding_window > 0) window = family.sliding_window;
  }
  config.sliding_layers = read_sliding_layers(reader, family, config, window.has_value());
  if (!config.sliding_layers.empty()) config.sliding_window = window;
}

// no_rope_layers has a 1 where a layer turns q and k.
std::vector<int> read_layers_without_rope(const Reader& reader,
                                          const Architecture& family,
                                          int num_layers) {
  std::vector<int> layers;
  if (!family.reads_no_rope_layers) return layers;
  const Json* turns = reader.find("no_rope_layers");
  if (turns == nullptr) {
    reader.refuse_null("no_rope_layer_interval");
    const int interval = reader.integer("no_rope_layer_interval", 1).value_or(4);
    for (int i = interval - 1; i < num_layers; i += interval) layers.push_back(i);
    return layers;
  }
  if (!turns->is_array() || turns->size() < static_cast<std::size_t>(num_layers)) {
    reader.refuse(
        fmt::format("'no_rope_layers' is {}, expected 1 (RoPE) or 0 for each of {} layers",
                    Reader::shown(*turns),
                    num_layers));
  }
  for (int i = 0; i < num_layers; ++i) {
    const Json& turn = (*turns)[static_cast<std::size_t>(i)];
    if (turn == 0) {
      layers.push_back(i);
    } else if (turn != 1) {
      reader.refuse(fmt::format(
          "'no_rope_layers' has {} for layer {}, expected 1 (RoPE) or 0", Reader::shown(turn), i));
    }
  }
  return layers;
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
  const Architecture& family = read_architecture(reader, config);
  refuse_unsupported_variants(reader);
  config.dtype = reader.text("dtype", reader.text("torch_dtype", "").c_str());
  config.vocab_size = reader.positive("vocab_size");
  config.hidden_size = reader.positive("hidden_size");
  config.intermediate_size = reader.positive("intermediate_size");
  config.num_hidden_layers = reader.positive("num_hidden_layers");
  config.max_position_embeddings = reader.positive("max_position_embeddings");
  config.rms_norm_eps = reader.number("rms_norm_eps", family.rms_norm_eps);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", family.ties_embeddings);
  read_heads(reader, family, config);
  const bool attention_bias =
      family.bias == Architecture::Bias::kByKey && reader.boolean("attention_bias", false);
  config.qkv_bias = attention_bias || family.bias == Architecture::Bias::kQkv;
  config.o_bias = attention_bias;
  config.mlp_bias = family.reads_mlp_bias && reader.boolean("mlp_bias", false);
  config.norm_place = family.norm_place;
  config.qk_norm = family.qk_norm;
  config.layers_without_rope = read_layers_without_rope(reader, family, config.num_hidden_layers);
  read_sliding_window(reader, family, config);
  config.rope = read_rope(reader, family, config.max_position_embeddings);
  read_special_tokens(reader, config);
  return config;
}

bool ModelConfig::has_rope(int layer_idx) const {
  return !std::ranges::binary_search(layers_without_rope, layer_idx);
}

void ModelConfig::require_within_window(std::int64_t num_tokens, const std::string& what) const {
  if (!sliding_window || num_tokens <= *sliding_window) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{} is beyond the teacher's own attention window (sliding_window = {} in "
                          "its config.json), which is not computed; use at most that",
                          what,
                          *sliding_window));
}

std::vector<TensorShape> layer_tensors(const ModelConfig& config, int layer_idx) {
  std::vector<TensorShape> tensors;
  for (LayerTensor& tensor : layer_slots(config))
    tensors.push_back({layer_prefix(layer_idx) + tensor.name, std::move(tensor.shape)});
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
