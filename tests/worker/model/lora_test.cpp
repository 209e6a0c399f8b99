#include "worker/model/lora.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/tiny_student.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

LoraAdapter adapter(const storage::ModelConfig& config,
                    std::vector<std::string> targets = {"q_proj", "v_proj"}) {
  storage::FinetuneSection finetune;
  finetune.rank = 3;
  finetune.alpha = 6.0;
  finetune.target_modules = std::move(targets);
  LoraAdapter made = start_adapter(config, finetune, 5);
  std::uint32_t stream = 0;
  for (auto& layer : made.layers) {
    for (auto& [module, pair] : layer) pair.b = tests::uniform(pair.b.sizes().vec(), 0.5, ++stream);
  }
  return made;
}

TEST(Lora, AnAdapterReadsBackAsItWasWritten) {
  const tests::TemporaryDirectory directory;
  const auto config = tests::make_tiny_student().config;
  const LoraAdapter written = adapter(config, {"o_proj", "q_proj"});
  save_adapter(directory.path(), written, "teacher");
  const LoraAdapter read = load_adapter(directory.path(), config);
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.scaling(), 2.0);
  EXPECT_THAT(read.target_modules, testing::ElementsAre("q_proj", "o_proj"));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const auto& module : read.target_modules) {
      EXPECT_TRUE(at::equal(read.find(layer, module)->a, written.find(layer, module)->a));
      EXPECT_TRUE(at::equal(read.find(layer, module)->b, written.find(layer, module)->b));
    }
    EXPECT_EQ(read.find(layer, "k_proj"), nullptr);
  }
}

TEST(Lora, AMissingASurplusAndAMisshapedTensorAreNamed) {
  const tests::TemporaryDirectory directory;
  const auto config = tests::make_tiny_student().config;
  save_adapter(directory.path(), adapter(config), "teacher");
  const auto path = directory / "adapter_model.safetensors";
  const std::string name = lora_name(1, "v_proj", "lora_B");
  const auto rewrite_and_load =
      [&](const std::function<void(std::map<std::string, storage::OwnedTensor>&)>& change) {
        std::map<std::string, storage::OwnedTensor> owned;
        {
          const storage::SafetensorsFile file(path);
          for (const auto& [key, view] : file.tensors()) owned[key] = to_owned(to_tensor(view));
        }
        change(owned);
        std::map<std::string, storage::TensorView> views;
        for (const auto& [key, tensor] : owned)
          views[key] = {tensor.dtype, tensor.shape, tensor.bytes};
        const tests::TemporaryDirectory other;
        storage::write_safetensors(other / "adapter_model.safetensors", views);
        std::filesystem::copy_file(directory / "adapter_config.json",
                                   other / "adapter_config.json");
        try {
          static_cast<void>(load_adapter(other.path(), config));
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
          return std::string(error.what());
        }
        return std::string("no error");
      };
  EXPECT_THAT(rewrite_and_load([&](auto& tensors) { tensors.erase(name); }),
              testing::HasSubstr(name + " is missing"));
  EXPECT_THAT(rewrite_and_load([&](auto& tensors) { tensors["extra"] = tensors.at(name); }),
              testing::HasSubstr("surplus"));
  EXPECT_THAT(rewrite_and_load([&](auto& tensors) {
                tensors[name] = to_owned(at::zeros({3, 16}));
              }),
              testing::HasSubstr(name + ": expected [16, 3]"));
}

TEST(Lora, APeftFeatureThatWouldChangeTheNumbersIsRefused) {
  const tests::TemporaryDirectory directory;
  const auto config = tests::make_tiny_student().config;
  const LoraAdapter made = adapter(config);
  save_adapter(directory.path(), made, "teacher");
  for (const auto& [key, value] : {std::pair<std::string, nlohmann::json>{"use_rslora", true},
                                   {"rank_pattern", {{"q_proj", 16}}},
                                   {"bias", "all"},
                                   {"target_modules", {"lm_head"}}}) {
    auto json = adapter_config(made, "teacher");
    json[key] = value;
    storage::write_atomically(directory / "adapter_config.json", json.dump());
    try {
      static_cast<void>(load_adapter(directory.path(), config));
      FAIL() << key << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    }
  }
}

TEST(Lora, TheStartIsPeftsRangeAndChangesNothingYet) {
  storage::FinetuneSection finetune;
  const auto config = tests::make_tiny_student().config;
  const LoraAdapter start = start_adapter(config, finetune, 1);
  const LoraAdapter other = start_adapter(config, finetune, 2);
  const LoraPair& pair = *start.find(1, "k_proj");
  EXPECT_EQ(pair.b.abs().max().item<double>(), 0.0);
  const double bound =
      1.0 / std::sqrt(32.0);  // kaiming_uniform with a = sqrt(5): sqrt(6 / (1 + 5) / in)
  EXPECT_LE(pair.a.abs().max().item<double>(), bound);
  EXPECT_GT(pair.a.abs().max().item<double>(), 0.95 * bound);
  EXPECT_NEAR(pair.a.mean().item<double>(), 0.0, 0.2 * bound);
  EXPECT_FALSE(at::equal(pair.a, start.find(0, "k_proj")->a));
  EXPECT_FALSE(at::equal(pair.a, start.find(1, "v_proj")->a));
  EXPECT_FALSE(at::equal(pair.a, other.find(1, "k_proj")->a));
}

TEST(Lora, MergingAddsTheScaledProductAndRoundsOnce) {
  auto tiny = tests::make_tiny_student({.dtype = at::kBFloat16});
  const LoraAdapter made = adapter(tiny.config, {"k_proj", "o_proj"});
  LayerWeights merged = tiny.layers[1];
  merge_into(merged, made, 1, tiny.config);
  const auto expected = [&](const at::Tensor& weight, const char* module) {
    const LoraPair& pair = *made.find(1, module);
    return (weight.to(at::kDouble) + 2.0 * at::mm(pair.b, pair.a).to(at::kDouble));
  };
  // q rows and v rows stay; k rows and o move.
  EXPECT_TRUE(at::equal(merged.qkv.weight().narrow(0, 0, 32),
                        tiny.layers[1].qkv.weight().narrow(0, 0, 32)));
  EXPECT_TRUE(at::equal(merged.qkv.weight().narrow(0, 48, 16),
                        tiny.layers[1].qkv.weight().narrow(0, 48, 16)));
  const auto check = [](const at::Tensor& found, const at::Tensor& exact) {
    const at::Tensor error = (found.to(at::kDouble) - exact).abs();
    EXPECT_LE((error / (exact.abs() + 1e-3)).max().item<double>(),
              1.0 / 256);  // one rounding to 8 bits
  };
  check(merged.qkv.weight().narrow(0, 32, 16),
        expected(tiny.layers[1].qkv.weight().narrow(0, 32, 16), "k_proj"));
  check(merged.o.weight(), expected(tiny.layers[1].o.weight(), "o_proj"));
}

TEST(Lora, MergingReachesTheProjectionsOfTheMlp) {
  auto tiny = tests::make_tiny_student();
  const LoraAdapter made = adapter(tiny.config, {"down_proj", "up_proj", "gate_proj"});
  EXPECT_EQ(lora_name(1, "up_proj", "lora_A"),
            "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight");
  const tests::TemporaryDirectory directory;
  save_adapter(directory.path(), made, "teacher");
  const LoraAdapter read = load_adapter(directory.path(), tiny.config);
  EXPECT_THAT(read.target_modules, testing::ElementsAre("gate_proj", "up_proj", "down_proj"));
  LayerWeights merged = tiny.layers[1];
  merge_into(merged, read, 1, tiny.config);
  const auto update = [&](const char* module) {
    return 2.0 * at::mm(made.find(1, module)->b, made.find(1, module)->a);
  };
  EXPECT_TRUE(at::allclose(merged.gate_up.weight() - tiny.layers[1].gate_up.weight(),
                           at::cat({update("gate_proj"), update("up_proj")}),
                           1e-4,
                           1e-5));
  EXPECT_TRUE(at::allclose(
      merged.down.weight() - tiny.layers[1].down.weight(), update("down_proj"), 1e-4, 1e-5));
  EXPECT_TRUE(merged.qkv.weight().is_same(tiny.layers[1].qkv.weight())) << "a copy for nothing";
}

// The tensors that a finetune of everything would have left, drawn.
TrainedTensors draw_parts(tests::TinyStudent& tiny) {
  TrainedTensors drawn;
  std::uint32_t stream = 500;
  const auto draw = [&](const std::vector<TrainedPart>& parts) {
    for (const TrainedPart& part : parts)
      drawn[part.name] = tests::uniform(part.shape, 0.5, ++stream);
  };
  for (int layer = 0; layer < tiny.config.num_hidden_layers; ++layer) {
    const auto index = static_cast<std::size_t>(layer);
    if (tiny.student.layers[index]) draw(parts_of(*tiny.student.layers[index], layer));
    draw(parts_of(tiny.layers[index], tiny.config, layer));
  }
  draw(parts_of(tiny.outer));
  return drawn;
}

TEST(TrainedParts, WhatWasWrittenBesideTheAdapterIsPutInPlaceOfStudentsAndTeachersOwn) {
  for (const tests::TinyOptions& options :
       {tests::TinyOptions{.softmax_layers = {1}},
        tests::TinyOptions{.qk_norm = storage::QkNorm::kHead, .biases = true},
        tests::TinyOptions{.qk_norm = storage::QkNorm::kWidth,
        .norm_place = storage::NormPlace::kAfter}}) {
    auto tiny = tests::make_tiny_student(options);
    const tests::TemporaryDirectory directory;
    save_adapter(directory.path(), adapter(tiny.config), "teacher");
    EXPECT_TRUE(load_adapter(directory.path(), tiny.config).trained.empty());
    const TrainedTensors drawn = draw_parts(tiny);
    save_trained(directory.path(), drawn);
    const LoraAdapter read = load_adapter(directory.path(), tiny.config);
    ASSERT_EQ(read.trained.size(), drawn.size());
    put_in_place(tiny.student, read.trained);
    put_in_place(parts_of(tiny.outer), read.trained);
    for (int layer = 0; layer < tiny.config.num_hidden_layers; ++layer)
      merge_into(tiny.layers[static_cast<std::size_t>(layer)], read, layer, tiny.config);
    const auto expect_in_place = [&](const std::vector<TrainedPart>& parts) {
      for (const TrainedPart& part : parts)
        EXPECT_TRUE(at::equal(part.value->view(part.shape), drawn.at(part.name))) << part.name;
    };
    for (int layer = 0; layer < tiny.config.num_hidden_layers; ++layer) {
      const auto index = static_cast<std::size_t>(layer);
      if (tiny.student.layers[index]) {
        expect_in_place(parts_of(*tiny.student.layers[index], layer));
        EXPECT_EQ(tiny.student.layers[index]->window_factors.dim(), 1);
      }
      expect_in_place(parts_of(tiny.layers[index], tiny.config, layer));
    }
    expect_in_place(parts_of(tiny.outer));
  }
}

TEST(TrainedParts, ATensorOfAnotherStudentOrModelIsNamed) {
  auto tiny = tests::make_tiny_student({.softmax_layers = {1}});
  const auto refusal = [&](const std::string& name, const at::Tensor& tensor) {
    const tests::TemporaryDirectory directory;
    save_adapter(directory.path(), adapter(tiny.config), "teacher");
    save_trained(directory.path(), {{name, tensor}});
    try {
      put_in_place(tiny.student, load_adapter(directory.path(), tiny.config).trained);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const at::Tensor wrong = at::zeros({3});
  EXPECT_THAT(refusal("model.embed_tokens.weight", wrong), testing::HasSubstr("not a norm"));
  EXPECT_THAT(refusal("model.norm.weight", wrong), testing::HasSubstr("another shape"));
  EXPECT_THAT(refusal("model.norm.weight", at::zeros({32}, at::kBFloat16)),
              testing::HasSubstr("is not fp32"));
  EXPECT_THAT(refusal("model.layers.0.self_attn.window_factors", wrong),
              testing::HasSubstr("another shape"));
  EXPECT_THAT(refusal("model.layers.1.self_attn.window_factors", wrong),
              testing::HasSubstr("model.layers.1.self_attn.window_factors is not in"));
}

}  // namespace
}  // namespace hedgerow::worker
