#include "storage/model/model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::refusal;
using Json = nlohmann::json;

Json tiny_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 7},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"}};
}

std::string refusal_of(Json config, const Json& change) {
  config.update(change);
  return refusal([&] { (void)ModelConfig::parse(config.dump(), "config.json"); },
                 ErrorKind::kUsage);
}

TEST(ModelConfig, ReadsLlama31WithItsRopeScaling) {
  Json json = tiny_config();
  json.update({{"attention_bias", true},
               {"mlp_bias", true},
               {"rope_theta", 500000.0},
               {"eos_token_id", {1, 2}},
               {"rope_scaling",
                {{"rope_type", "llama3"},
                 {"factor", 8.0},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 8192}}}});
  const ModelConfig config = ModelConfig::parse(json.dump(), "config.json");
  EXPECT_EQ(config.head_dim, 2);
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.rope.kind, RopeConfig::Kind::kLlama3);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 8192);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int>{1, 2}));
  EXPECT_TRUE(config.qkv_bias && config.o_bias && config.mlp_bias &&
              config.qk_norm == QkNorm::kNone);
  EXPECT_FALSE(config.sliding_window.has_value());
}

TEST(ModelConfig, ReadsTheRopeParametersThatTransformers5Writes) {
  Json json = tiny_config();
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "linear"}, {"rope_theta", 5e5}, {"factor", 2.0}};
  const ModelConfig config = ModelConfig::parse(json.dump(), "config.json");
  EXPECT_EQ(config.rope.kind, RopeConfig::Kind::kLinear);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_EQ(config.rope.factor, 2.0);
}

TEST(ModelConfig, KnowsWhatQwenAndMistralDoOtherwise) {
  Json json = tiny_config();
  json.update(
      {{"architectures", {"Qwen2ForCausalLM"}}, {"model_type", "qwen2"}, {"sliding_window", 4096}});
  const ModelConfig qwen2 = ModelConfig::parse(json.dump(), "config.json");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && qwen2.qk_norm == QkNorm::kNone);
  EXPECT_FALSE(qwen2.sliding_window.has_value()) << "use_sliding_window is off by default";
  json.update({{"use_sliding_window", true}, {"max_window_layers", 1}});
  EXPECT_EQ(ModelConfig::parse(json.dump(), "config.json").sliding_window, 4096);

  json.update({{"architectures", {"Qwen3ForCausalLM"}},
               {"model_type", "qwen3"},
               {"use_sliding_window", false}});
  const ModelConfig qwen3 = ModelConfig::parse(json.dump(), "config.json");
  EXPECT_TRUE(qwen3.qk_norm == QkNorm::kHead && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 128) << "the class default, not hidden_size / heads";

  json.update({{"architectures", {"MistralForCausalLM"}},
               {"model_type", "mistral"},
               {"sliding_window", nullptr}});
  EXPECT_FALSE(ModelConfig::parse(json.dump(), "config.json").sliding_window.has_value());
  json.erase("sliding_window");
  EXPECT_EQ(ModelConfig::parse(json.dump(), "config.json").sliding_window, 4096)
      << "the class default";
}

// Which of the keys goes before is transformers'; tests/huggingface/config_walk.py compares all.
TEST(ModelConfig, RopeScalingGoesBeforeRopeParameters) {
  Json json = tiny_config();
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 2e5}};
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  const RopeConfig both = ModelConfig::parse(json.dump(), "config.json").rope;
  EXPECT_EQ(both.kind, RopeConfig::Kind::kLinear);
  EXPECT_EQ(both.theta, 10000.0) << "the theta of the object that is not taken is not either";
  json["rope_scaling"] = Json::object();
  EXPECT_EQ(ModelConfig::parse(json.dump(), "config.json").rope.theta, 2e5);
}

TEST(ModelConfig, LayerTypesSayWhichLayersSlide) {
  Json json = tiny_config();
  json.update({{"architectures", {"Qwen2ForCausalLM"}},
               {"model_type", "qwen2"},
               {"use_sliding_window", true},
               {"sliding_window", 32},
               {"max_window_layers", 28},
               {"layer_types", {"full_attention", "sliding_attention"}}});
  EXPECT_EQ(ModelConfig::parse(json.dump(), "config.json").sliding_window, 32);
  json.update({{"max_window_layers", 0}, {"layer_types", {"full_attention", "full_attention"}}});
  EXPECT_FALSE(ModelConfig::parse(json.dump(), "config.json").sliding_window.has_value());
  EXPECT_THAT(refusal_of(json, {{"layer_types", {"full_attention"}}}), HasSubstr("layer_types"));
  EXPECT_THAT(refusal_of(json, {{"layer_types", {"chunked_attention", "full_attention"}}}),
              HasSubstr("chunked_attention"));
  EXPECT_THAT(refusal_of(json,
                         {{"use_sliding_window", false},
                          {"layer_types", {"full_attention", "sliding_attention"}}}),
              HasSubstr("use_sliding_window"));
}

TEST(ModelConfig, AbsentAndNullKeysAreTheFamilysDefaultsOrRefused) {
  Json json = tiny_config();
  json.update({{"architectures", {"MistralForCausalLM"}},
               {"model_type", "mistral"},
               {"hidden_size", 64},
               {"num_attention_heads", 16}});
  json.erase("num_key_value_heads");
  EXPECT_EQ(ModelConfig::parse(json.dump(), "config.json").num_key_value_heads, 8);
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(ModelConfig::parse(json.dump(), "config.json").num_key_value_heads, 16);
  json.update({{"architectures", {"Qwen3ForCausalLM"}}, {"model_type", "qwen3"}});
  EXPECT_THAT(refusal_of(json, {{"head_dim", nullptr}}), HasSubstr("'head_dim' is null"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"rope_theta", nullptr}}), HasSubstr("'rope_theta'"));
}

TEST(ModelConfig, Olmo2HasItsNormsBehindAttentionAndMlpAndOverAllHeads) {
  Json json = tiny_config();
  json.update({{"architectures", {"Olmo2ForCausalLM"}}, {"model_type", "olmo2"}});
  json.erase("rms_norm_eps");
  const ModelConfig config = ModelConfig::parse(json.dump(), "config.json");
  EXPECT_EQ(config.norm_place, NormPlace::kAfter);
  EXPECT_EQ(config.rms_norm_eps, 1e-5) << "the class default";
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const TensorShape& tensor : layer_tensors(config, 1)) shapes[tensor.name] = tensor.shape;
  const std::int64_t query = std::int64_t{config.num_attention_heads} * config.head_dim;
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.q_norm.weight"), (std::vector{query}));
  EXPECT_TRUE(shapes.contains("model.layers.1.post_feedforward_layernorm.weight"));
  EXPECT_FALSE(shapes.contains("model.layers.1.input_layernorm.weight"));
}

TEST(ModelConfig, SmolLm3NamesTheLayersThatDoNotTurn) {
  Json json = tiny_config();
  json.update({{"architectures", {"SmolLM3ForCausalLM"}},
               {"model_type", "smollm3"},
               {"no_rope_layer_interval", 2}});
  json.erase("rope_theta");
  const auto parsed = [&](const Json& changed) {
    Json all = json;
    if (!changed.empty()) all.update(changed);
    return ModelConfig::parse(all.dump(), "config.json");
  };
  EXPECT_EQ(parsed({}).layers_without_rope, (std::vector{1})) << "every second layer";
  EXPECT_FALSE(parsed({}).has_rope(1));
  EXPECT_EQ(parsed({{"rope_scaling", nullptr}}).rope.theta, 2e6) << "the class default";
  EXPECT_EQ(parsed({{"no_rope_layers", {0, 1}}}).layers_without_rope, (std::vector{0}));
  const Json sliding{{"use_sliding_window", true}, {"sliding_window", 32}};
  EXPECT_EQ(parsed(sliding).sliding_layers, (std::vector{1})) << "those that do not turn";
  EXPECT_THAT(refusal_of(json, {{"no_rope_layers", {1}}}), HasSubstr("no_rope_layers"));
  EXPECT_THAT(refusal_of(json, {{"no_rope_layers", {1, 2}}}), HasSubstr("expected 1 (RoPE) or 0"));
  EXPECT_THAT(refusal_of(json, {{"no_rope_layers", {1, true}}}), HasSubstr("'no_rope_layers' has true"));
}

TEST(ModelConfig, UnsupportedArchitectureIsNamedWithTheSupportedList) {
  EXPECT_THAT(refusal_of(tiny_config(), {{"architectures", {"GPT2LMHeadModel"}}}),
              AllOf(HasSubstr("GPT2LMHeadModel"),
                    HasSubstr("MistralForCausalLM"),
                    HasSubstr("Qwen3ForCausalLM")));
  EXPECT_THAT(refusal_of(tiny_config(), {{"architectures", nullptr}, {"model_type", "mamba"}}),
              HasSubstr("mamba"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"model_type", "gemma"}}), HasSubstr("does not belong"));
}

TEST(ModelConfig, WhatWouldBeComputedOtherwiseIsRefusedAndNamed) {
  EXPECT_THAT(refusal_of(tiny_config(), {{"hidden_act", "gelu"}}), HasSubstr("gelu"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"quantization_config", {{"bits", 4}}}}),
              HasSubstr("quantised"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}}}),
              HasSubstr("yarn"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"rope_scaling", {{"rope_type", "llama3"}}}}),
              HasSubstr("factor"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"partial_rotary_factor", 0.5}}),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refusal_of(tiny_config(),
                         {{"rope_scaling",
                           {{"type", "linear"}, {"factor", 2.0}, {"partial_rotary_factor", 0.5}}}}),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"is_causal", false}}), HasSubstr("is_causal"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"per_layer_config", {{"0", Json::object()}}}}),
              HasSubstr("per_layer_config"));
}

TEST(ModelConfig, MissingAndIllTypedKeysAreNamed) {
  EXPECT_THAT(refusal_of(tiny_config(), {{"hidden_size", nullptr}}),
              HasSubstr("'hidden_size' is missing"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"hidden_size", "8"}}),
              HasSubstr("'hidden_size' is \"8\""));
  EXPECT_THAT(refusal_of(tiny_config(), {{"vocab_size", -1}}), HasSubstr("'vocab_size' is -1"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"vocab_size", 1e12}}), HasSubstr("vocab_size"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"vocab_size", 18446744073709551615ULL}}),
              HasSubstr("vocab_size"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"num_key_value_heads", 3}}), HasSubstr("not a multiple"));
  EXPECT_THAT(refusal_of(tiny_config(), {{"tie_word_embeddings", 1}}),
              HasSubstr("expected true or false"));
  EXPECT_THAT(refusal([] { (void)ModelConfig::parse(R"({"vocab_size":1e999})", "c"); },
                      ErrorKind::kCorrupt),
              HasSubstr("c: a number in it is too large"));
  const std::string twice = R"({"model_type":"llama","vocab_size":1,"vocab_size":2})";
  EXPECT_THAT(refusal([&] { (void)ModelConfig::parse(twice, "c"); }, ErrorKind::kCorrupt),
              HasSubstr("twice"));
  EXPECT_THAT(refusal([&] { (void)ModelConfig::parse("{\"a\":", "c"); }, ErrorKind::kCorrupt),
              HasSubstr("byte"));
}

class ModelDirectoryTest : public ::testing::Test {
 protected:
  ModelDirectoryTest() { write(root() / "config.json", tiny_config().dump()); }

  fs::path root() const { return directory_ / "model"; }
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  std::map<std::string, TensorView> all_tensors(int first_layer, int end_layer, bool outer) {
    const ModelConfig config = ModelConfig::parse(tiny_config().dump(), "config.json");
    std::vector<TensorShape> shapes;
    if (outer) shapes = outer_tensors(config);
    for (int layer = first_layer; layer < end_layer; ++layer) {
      for (const TensorShape& shape : layer_tensors(config, layer)) shapes.push_back(shape);
    }
    std::map<std::string, TensorView> tensors;
    for (const TensorShape& shape : shapes) {
      TensorView view{DType::kBF16, shape.shape, {}};
      view.bytes = std::span(zeros_).first(static_cast<std::size_t>(view.num_elements()) * 2);
      tensors.emplace(shape.name, view);
    }
    return tensors;
  }
  // Two weight files and their index, as save_pretrained writes a large model.
  Json write_sharded() {
    Json weight_map = Json::object();
    const char* names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    for (int file = 0; file < 2; ++file) {
      const auto tensors = all_tensors(file, file + 1, file == 0);
      write_safetensors(root() / names[file], tensors);
      for (const auto& [name, view] : tensors) weight_map[name] = names[file];
    }
    const Json index{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}};
    write(root() / "model.safetensors.index.json", index.dump());
    return index;
  }
  std::string open_refusal(const std::string& reference, ErrorKind kind) {
    return refusal([&] { static_cast<void>(ModelDirectory::open(reference)); }, kind);
  }

  tests::TemporaryDirectory directory_;
  std::vector<std::byte> zeros_ = std::vector<std::byte>(4096);
};

TEST_F(ModelDirectoryTest, OneFileAndShardedWithIndexHoldTheSameTensors) {
  write_sharded();
  const ModelDirectory sharded = ModelDirectory::open(root().string());
  EXPECT_TRUE(sharded.has("model.layers.1.mlp.up_proj.weight"));
  const std::string fingerprint = sharded.fingerprint();

  write_safetensors(root() / "model.safetensors", all_tensors(0, 2, true));
  const ModelDirectory single = ModelDirectory::open(root().string());
  EXPECT_TRUE(single.has("model.layers.1.mlp.up_proj.weight"));
  EXPECT_NE(single.fingerprint(), fingerprint) << "other files are another teacher";
}

TEST_F(ModelDirectoryTest, AHeadOfItsOwnBesideTiedEmbeddingsIsTaken) {
  auto tensors = all_tensors(0, 2, true);
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  write_safetensors(root() / "model.safetensors", tensors);
  EXPECT_TRUE(ModelDirectory::open(root().string()).config().tie_word_embeddings);
  std::vector<std::byte> other(tensors["lm_head.weight"].bytes.size(), std::byte{1});
  tensors["lm_head.weight"].bytes = other;
  write_safetensors(root() / "model.safetensors", tensors);
  EXPECT_FALSE(ModelDirectory::open(root().string()).config().tie_word_embeddings);
}

TEST_F(ModelDirectoryTest, APlanNeedsTheConfigurationAlone) {
  EXPECT_EQ(ModelDirectory::open(root().string(), Weights::kOptional).unseen(),
            std::vector<std::string>{"model.safetensors"});
  write_sharded();
  fs::remove(root() / "model-00002-of-00002.safetensors");
  EXPECT_EQ(ModelDirectory::open(root().string(), Weights::kOptional).unseen(),
            std::vector<std::string>{"model-00002-of-00002.safetensors"});
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage), HasSubstr("model-00002"));
}

TEST_F(ModelDirectoryTest, NamesWithAnotherPrefixAreToldWithTheRenameThatHelps) {
  const auto with_prefix = [&](const std::string& cut, const std::string& prefix) {
    std::map<std::string, TensorView> tensors;
    for (const auto& [name, view] : all_tensors(0, 2, true))
      tensors.emplace(name.starts_with(cut) ? prefix + name.substr(cut.size()) : name, view);
    write_safetensors(root() / "model.safetensors", tensors);
    return open_refusal(root().string(), ErrorKind::kUsage);
  };
  EXPECT_THAT(with_prefix("", "_orig_mod."), HasSubstr("take '_orig_mod.' off the front"));
  EXPECT_THAT(with_prefix("model.", ""), HasSubstr("put 'model.' before"));
  EXPECT_THAT(with_prefix("model.", "model.language_model."),
              HasSubstr("write 'model.' for 'model.language_model.'"));
}

TEST_F(ModelDirectoryTest, HuggingFaceCacheSnapshotsWithLinksOpenOffline) {
  write_sharded();
  const fs::path repository = directory_ / "hub" / "models--org--name";
  const fs::path snapshot = repository / "snapshots" / "abc123";
  fs::create_directories(snapshot);
  fs::create_directories(repository / "blobs");
  for (const auto& entry : fs::directory_iterator(root())) {
    const std::string name = entry.path().filename();
    fs::copy_file(entry.path(), repository / "blobs" / ("blob-" + name));
    fs::create_symlink(fs::path("../../blobs") / ("blob-" + name), snapshot / name);
  }
  write(repository / "refs" / "main", "abc123");
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"}) ::unsetenv(name);
  ::setenv("HF_HUB_CACHE", (directory_ / "hub").c_str(), 1);
  const ModelDirectory by_name = ModelDirectory::open("org/name");
  EXPECT_EQ(by_name.fingerprint(), ModelDirectory::open(root().string()).fingerprint());
  EXPECT_EQ(by_name.path(), snapshot);
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", directory_.path().c_str(), 1);
  EXPECT_EQ(ModelDirectory::open("org/name").path(), snapshot);
  EXPECT_THAT(open_refusal("org/other", ErrorKind::kUsage),
              AllOf(HasSubstr("org/other"), HasSubstr("offline")));
  write(repository / "refs" / "main", "../../../model");
  fs::create_directories(repository / "snapshots" / "def456");
  EXPECT_THAT(open_refusal("org/name", ErrorKind::kUsage), HasSubstr("2 snapshots"));
  ::unsetenv("HF_HOME");
}

TEST_F(ModelDirectoryTest, IndexNamesMustBePlainAndTheirFilesMustHoldTheirTensors) {
  const Json good = write_sharded();
  for (const char* name : {"../model-00001-of-00002.safetensors",
                           "/etc/passwd",
                           "..",
                           "a/b.safetensors",
                           "",
                           "x.bin"}) {
    Json index = good;
    index["weight_map"]["model.norm.weight"] = name;
    write(root() / "model.safetensors.index.json", index.dump());
    EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage), HasSubstr("plain name")) << name;
  }
  Json index = good;
  index["weight_map"]["model.norm.weight"] = "model-00002-of-00002.safetensors";
  write(root() / "model.safetensors.index.json", index.dump());
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("is not")));
  write(root() / "model.safetensors.index.json",
        R"({"weight_map":{"a":"b.safetensors","a":"c.safetensors"}})");
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage), HasSubstr("twice"));
}

TEST_F(ModelDirectoryTest, MissingFilesTensorsAndWrongShapesAreNamed) {
  EXPECT_THAT(open_refusal((directory_ / "none").string(), ErrorKind::kUsage),
              HasSubstr("no such directory"));
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage), HasSubstr("neither"));
  write_sharded();
  fs::remove(root() / "model-00002-of-00002.safetensors");
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage),
              HasSubstr("model-00002-of-00002.safetensors"));

  auto tensors = all_tensors(0, 2, true);
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  write_safetensors(root() / "model.safetensors", tensors);
  EXPECT_THAT(
      open_refusal(root().string(), ErrorKind::kUsage),
      AllOf(HasSubstr("'model.layers.1.mlp.up_proj.weight' [12, 8]"), HasSubstr("missing")));

  tensors = all_tensors(0, 2, true);
  tensors.at("model.norm.weight").shape = {2, 4};
  write_safetensors(root() / "model.safetensors", tensors);
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("[2, 4]"), HasSubstr("[8]")));

  tensors = all_tensors(0, 2, true);
  tensors["model.layers.2.input_layernorm.weight"] = tensors.at("model.norm.weight");
  write_safetensors(root() / "model.safetensors", tensors);
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage), HasSubstr("beyond the 2"));

  fs::remove(root() / "config.json");
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage),
              HasSubstr("config.json is missing"));
}

TEST_F(ModelDirectoryTest, PickledWeightsAreRefusedWithAHint) {
  write(root() / "pytorch_model.bin", "PK");
  EXPECT_THAT(open_refusal(root().string(), ErrorKind::kUsage),
              AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("safe_serialization")));
}

TEST_F(ModelDirectoryTest, EndTokensComeFromTheGenerationConfigWhenThereIsOne) {
  write_sharded();
  write(root() / "generation_config.json", R"({"eos_token_id":[3,5]})");
  EXPECT_EQ(ModelDirectory::open(root().string()).config().eos_token_ids, (std::vector<int>{3, 5}));
}

TEST(ModelDirectory, TheRealModelIsComplete) {
  const char* const path = std::getenv("HEDGEROW_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "HEDGEROW_TEST_MODEL is not set";
  static_cast<void>(ModelDirectory::open(path));
}

}  // namespace
}  // namespace hedgerow::storage
