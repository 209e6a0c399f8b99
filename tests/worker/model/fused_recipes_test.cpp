// What people run has fused kernels at every step: init's attention and the shipped recipes, asked
// of the CUDA backends' own code, emulated.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "storage/recipe/recipe.hpp"
#include "tests/kernels/emulation/emulated_device.hpp"
#include "worker/model/attention_path.hpp"

namespace hedgerow::worker {
namespace {

storage::ModelConfig heads_of(int num_heads, int num_kv_heads, int head_dim) {
  storage::ModelConfig config;
  config.num_attention_heads = num_heads;
  config.num_key_value_heads = num_kv_heads;
  config.head_dim = head_dim;
  return config;
}

void expect_fused(const storage::AttentionSpec& spec,
                  const storage::ModelConfig& config,
                  double xent_factor,
                  const std::string& name) {
  const std::int64_t H = config.num_attention_heads, D = config.head_dim, f = spec.projected_dim();
  const std::int64_t U = spec.num_key_maps(H, config.num_key_value_heads);
  kernels::HybridParameters parameters{{at::zeros({H, D, f}), {}}, {at::zeros({U, D, f}), {}}, {}};
  if (spec.bias) {
    parameters.q.bias = at::zeros({H, f});
    parameters.k.bias = at::zeros({U, f});
  }
  if (spec.window != storage::WindowLayout::kNone) parameters.window_factors = at::zeros({H});
  for (const AttentionUse use : {AttentionUse::kTransfer,
                                 AttentionUse::kFinetune,
                                 AttentionUse::kEvaluate,
                                 AttentionUse::kGenerate}) {
    AttentionPath path = attention_path(use, config, at::kCPU, at::kBFloat16);
    path.parameters = &parameters;
    path.options = spec;
    path.xent_factor = xent_factor;
    // With a recall cache a whole sequence's choices are ATen operations; a step's are fused.
    const bool infers = use == AttentionUse::kEvaluate || use == AttentionUse::kGenerate;
    const bool chooses = infers && spec.recall_cache > 0;
    EXPECT_EQ(why_not_fused(path),
              chooses ? "a recall cache (attention.recall_cache > 0) has no fused kernel but the "
                        "decode step's"
                      : "")
        << name << ", use " << static_cast<int>(use);
  }
}

void expect_init_fused() {
  for (const auto& config :
       {heads_of(9, 3, 64), heads_of(32, 8, 128), heads_of(64, 8, 128), heads_of(128, 8, 128)}) {
    for (const int features : {128, config.head_dim}) {  // init's; of --like published
      storage::AttentionSpec spec;
      spec.feature_dim = features;
      spec.num_sinks = spec.default_sinks();
      spec.key_maps = spec.default_key_maps();
      spec.recall_cache = features == 128 ? spec.default_recall_cache() : 0;
      expect_fused(spec, config, 0.0, "init, F = " + std::to_string(features));
      spec.window = storage::WindowLayout::kSliding;
      expect_fused(spec, config, 1.0, "sliding, F = " + std::to_string(features));
    }
  }
}

TEST(FusedRecipes, WhatInitWritesIsFusedAtTheHeadsOfSmolLM2AndOfLlama) { expect_init_fused(); }

// Compute capability 8.6 and 8.9.
TEST(FusedRecipes, WhatInitWritesIsFusedOnCardsWith99KiBOfSharedMemory) {
  const kernels::cuda::emulation::SharedBytesLimit limit(std::size_t{99} << 10);
  expect_init_fused();
}

void expect_recipes_fused() {
  const std::filesystem::path recipes =
      std::filesystem::path(HEDGEROW_SOURCE_DIR) / "deploy" / "recipes";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(recipes)) {
    if (entry.path().extension() != ".toml") continue;
    const storage::Recipe recipe = storage::Recipe::load(entry.path());
    const bool is_llama = entry.path().filename().string().starts_with("llama3");
    expect_fused(recipe.attention,
                 is_llama ? heads_of(64, 8, 128) : heads_of(9, 3, 64),
                 recipe.transfer.xent_factor,
                 entry.path().filename().string());
    ++count;
  }
  EXPECT_GE(count, 5);
}

TEST(FusedRecipes, TheShippedRecipesAreFused) { expect_recipes_fused(); }

TEST(FusedRecipes, TheShippedRecipesAreFusedOnCardsWith99KiBOfSharedMemory) {
  const kernels::cuda::emulation::SharedBytesLimit limit(std::size_t{99} << 10);
  expect_recipes_fused();
}

TEST(FusedRecipes, AHeadDimWithoutKernelsIsNamed) {
  storage::AttentionSpec spec;
  spec.feature_dim = 96;
  const kernels::HybridParameters parameters{
      {at::zeros({8, 96, 48}), {}}, {at::zeros({8, 96, 48}), {}}, at::zeros({8})};
  AttentionPath path =
      attention_path(AttentionUse::kTransfer, heads_of(8, 8, 96), at::kCPU, at::kBFloat16);
  path.parameters = &parameters;
  path.options = spec;
  EXPECT_NE(why_not_fused(path).find("not 96"), std::string::npos) << why_not_fused(path);
}

}  // namespace
}  // namespace hedgerow::worker
