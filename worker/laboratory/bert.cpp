#include "worker/laboratory/bert.hpp"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <string>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/json/json_fields.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker::laboratory {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& file, const std::string& what) {
  throw storage::Error(storage::ErrorKind::kUsage, file.string() + ": " + what);
}

// A field of config.json, or what transformers takes where it is absent.
template <typename Value>
Value field(const nlohmann::json& config, const fs::path& file, const char* name, Value otherwise) {
  const auto found = config.find(name);
  if (found == config.end()) return otherwise;
  try {
    return found->get<Value>();
  } catch (const nlohmann::json::exception&) {
    refuse(file, std::string(name) + ": a value of another type, found " + found->dump());
  }
}

}  // namespace

TransformerOptions bert_options(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  const nlohmann::json config = storage::parse_document(storage::read_text(file));
  const auto text = [&](const char* name, const char* expected) {
    const std::string found = field<std::string>(config, file, name, expected);
    if (found != expected)
      refuse(file,
             std::string(name) + ": expected '" + expected + "', found '" + found +
                 "'; the laboratory reads BERT's shape alone");
  };
  text("model_type", "bert");
  text("hidden_act", "gelu");
  text("position_embedding_type", "absolute");
  if (field<bool>(config, file, "is_decoder", false))
    refuse(file, "is_decoder: expected false, found true; an encoder sees both ways");
  const auto number = [&](const char* name, std::int64_t otherwise) {
    return field<std::int64_t>(config, file, name, otherwise);
  };
  TransformerOptions options;
  options.vocab_size = number("vocab_size", 30522);
  options.hidden_size = number("hidden_size", 768);
  options.num_layers = number("num_hidden_layers", 12);
  options.num_heads = number("num_attention_heads", 12);
  options.mlp_size = number("intermediate_size", 3072);
  options.max_positions = number("max_position_embeddings", 512);
  options.norm = LayerNormKind::kLayer;
  options.norm_first = false;
  options.norm_embedding = true;
  options.positions = Positions::kLearned;
  options.tied_head = true;
  options.projection_biases = true;
  options.norm_epsilon = field<double>(config, file, "layer_norm_eps", 1e-12);
  options.attention.causal = false;
  options.validate();
  return options;
}

void load_bert(const Transformer& model, const fs::path& directory) {
  const storage::SafetensorsFile file(directory / "model.safetensors");
  // Of BertModel, or of a model that has one.
  const std::string root =
      file.tensors().contains("embeddings.word_embeddings.weight") ? "" : "bert.";
  const auto read = [&](const std::string& name) {
    return to_tensor(file.at(root + name)).to(at::kFloat);
  };
  model.assign("embedding", read("embeddings.word_embeddings.weight"));
  model.assign("positions",
               read("embeddings.position_embeddings.weight") +
                   read("embeddings.token_type_embeddings.weight")[0]);
  model.assign("embedding_norm", read("embeddings.LayerNorm.weight"));
  model.assign("embedding_norm_bias", read("embeddings.LayerNorm.bias"));
  for (std::int64_t i = 0; i < model.options().num_layers; ++i) {
    const std::string ours = "layer." + std::to_string(i) + ".",
                      theirs = "encoder.layer." + std::to_string(i) + ".";
    // A product that is [out, in] there; norms and biases as they are.
    const auto product = [&](const std::string& name) {
      return read(theirs + name + ".weight").t();
    };
    const auto part = [&](const char* which) { return "attention.self." + std::string(which); };
    model.assign(
        ours + "qkv",
        at::cat({product(part("query")), product(part("key")), product(part("value"))}, 1));
    model.assign(ours + "qkv_bias",
                 at::cat({read(theirs + part("query.bias")),
                          read(theirs + part("key.bias")),
                          read(theirs + part("value.bias"))}));
    model.assign(ours + "out", product("attention.output.dense"));
    model.assign(ours + "out_bias", read(theirs + "attention.output.dense.bias"));
    model.assign(ours + "norm1", read(theirs + "attention.output.LayerNorm.weight"));
    model.assign(ours + "norm1_bias", read(theirs + "attention.output.LayerNorm.bias"));
    model.assign(ours + "up", product("intermediate.dense"));
    model.assign(ours + "up_bias", read(theirs + "intermediate.dense.bias"));
    model.assign(ours + "down", product("output.dense"));
    model.assign(ours + "down_bias", read(theirs + "output.dense.bias"));
    model.assign(ours + "norm2", read(theirs + "output.LayerNorm.weight"));
    model.assign(ours + "norm2_bias", read(theirs + "output.LayerNorm.bias"));
  }
}

}  // namespace hedgerow::worker::laboratory
