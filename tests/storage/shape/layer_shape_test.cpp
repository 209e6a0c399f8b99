// What a layer weighs, by hand. Catches: a matrix of query heads counted where there are kv heads, a
// bias or a norm left out, LoRA on a module's wrong side, and a budget that turns around.
#include "storage/shape/layer_shape.hpp"

#include <gmock/gmock.h>

#include "storage/base/error.hpp"
#include "storage/shape/budgets.hpp"

namespace hedgerow::storage {
namespace {

ModelConfig llama_8b() {
  ModelConfig model;
  model.hidden_size = 4096;
  model.intermediate_size = 14336;
  model.num_hidden_layers = 32;
  model.num_attention_heads = 32;
  model.num_key_value_heads = 8;
  model.head_dim = 128;
  model.vocab_size = 128256;
  return model;
}

TEST(LayerShape, ALayersParametersAreThoseOfItsTensors) {
  ModelConfig model = llama_8b();
  const std::int64_t attention = 2LL * 4096 * 4096 + 2LL * 1024 * 4096;
  EXPECT_EQ(attention_parameters(model), attention);
  EXPECT_EQ(matrix_parameters(model), attention + 3LL * 4096 * 14336);
  EXPECT_EQ(layer_parameters(model), matrix_parameters(model) + 2 * 4096);
  model.qkv_bias = true;
  model.qk_norm = QkNorm::kHead;
  EXPECT_EQ(layer_parameters(model),
            matrix_parameters(model) + 2 * 4096 + 4096 + 2 * 1024 + 2 * 128);
}

TEST(LayerShape, MapsAndLoraAreCountedByTheirHeadsAndModules) {
  AttentionSpec spec;
  spec.feature_dim = 128;  // 64 columns, mapped twice
  EXPECT_EQ(map_parameters(spec, llama_8b()), (32 + 8) * 64 * 129 + 32);
  spec.key_maps = KeyMaps::kQueryHead;
  spec.bias = false;
  EXPECT_EQ(map_parameters(spec, llama_8b()), 64 * 64 * 128 + 32);
  EXPECT_EQ(lora_parameters(llama_8b(), {"q_proj", "k_proj", "down_proj"}, 8),
            8LL * (2 * 4096 + (1024 + 4096) + (4096 + 14336)));
  EXPECT_EQ(lora_parameters(llama_8b(), {}, 8), 0);
  EXPECT_THAT([] { return linear_module(llama_8b(), "lm_head"); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("it has q_proj, k_proj")));
}

// In bf16: fp32 are the normed input and the attention's output, with LoRA's middle of q, k, v and o.
TEST(LayerShape, KeptActivationsAreWhatLayerActivationsHolds) {
  const std::int64_t wide = 4096 + 4096 + 4 * 8;
  const std::int64_t narrow = 4 * (4096 + 1024) + 4096 + 2 * 14336;
  EXPECT_EQ(kept_activation_bytes(llama_8b(), 2, {"q_proj", "o_proj"}, 8), 4 * wide + 2 * narrow);
  EXPECT_EQ(kept_activation_bytes(llama_8b(), 2, {"q_proj", "up_proj"}, 8),
            4 * (wide + 4096 + 2 * 8) + 2 * narrow);
}

TEST(Budgets, OfAGpuATenthAndAtLeastFourGibStayFree) {
  constexpr std::int64_t kGib = std::int64_t{1} << 30;
  EXPECT_EQ(gpu_activation_bytes(80 * kGib, 60 * kGib), 52 * kGib);
  EXPECT_EQ(gpu_activation_bytes(24 * kGib, 20 * kGib), 16 * kGib);
  EXPECT_EQ(gpu_activation_bytes(24 * kGib, 3 * kGib), 0);
  EXPECT_TRUE(keeps_activations(kHostActivationBytes, 4, 4, kHostActivationBytes));
  EXPECT_FALSE(keeps_activations(kHostActivationBytes, 5, 4, kHostActivationBytes));
}

}  // namespace
}  // namespace hedgerow::storage
