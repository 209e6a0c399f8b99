// What a sequence keeps in generation, by hand for SmolLM2-135M; and the untrained window that keeps
// as much. Catches: a state a query head counted where there is one a kv head, a ring of one window
// where a terraced one has two, an opponent that is rounded down.
#include "storage/shape/state_bytes.hpp"

#include <gtest/gtest.h>

namespace hedgerow::storage {
namespace {

ModelConfig model_of_135m() {
  ModelConfig model;
  model.num_hidden_layers = 30;
  model.num_attention_heads = 9;
  model.num_key_value_heads = 3;
  model.head_dim = 64;
  return model;
}

AttentionSpec terraced(int recall_cache) {
  AttentionSpec spec;
  spec.feature_dim = 128;
  spec.recall_cache = recall_cache;
  return spec;
}

constexpr std::int64_t kPair = 2LL * 3 * 64 * 2;  // a key and its value in bf16, of 3 kv heads

TEST(StateBytes, ALayerKeepsSinksRingCacheAndSums) {
  const LayerState state = layer_state(terraced(64), model_of_135m());
  EXPECT_EQ(state.sinks, 4 * kPair);
  EXPECT_EQ(state.ring, 128 * kPair);
  EXPECT_EQ(state.recall, 64 * kPair + 64 * 3 * 8);
  EXPECT_EQ(state.sums, 3LL * 128 * 65 * 4);
  EXPECT_EQ(state.total(), state.sinks + state.ring + state.recall + state.sums);
  AttentionSpec of_query_heads = terraced(0);
  of_query_heads.key_maps = KeyMaps::kQueryHead;
  of_query_heads.window = WindowLayout::kSliding;
  EXPECT_EQ(layer_state(of_query_heads, model_of_135m()).sums, 9LL * 128 * 65 * 4);
  EXPECT_EQ(layer_state(of_query_heads, model_of_135m()).ring, 64 * kPair);
}

TEST(StateBytes, LayersThatKeepSoftmaxGrowWithTheSequence) {
  const std::int64_t layer = layer_state(terraced(64), model_of_135m()).total();
  EXPECT_EQ(state_bytes(terraced(64), model_of_135m(), 0, 4096), 30 * layer);
  EXPECT_EQ(state_bytes(terraced(64), model_of_135m(), 2, 4096), 28 * layer + 2 * 4096 * kPair);
}

TEST(StateBytes, TheEqualWindowHasAtLeastTheStudentsBytesAndOneTokenLessHasFewer) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const int recall : {0, 32, 64}) {
      AttentionSpec spec = terraced(recall);
      spec.window = layout;
      const std::int64_t slots = layout == WindowLayout::kTerraced ? 2 : 1;
      const auto untrained = [&](int window) { return (4 + slots * window) * kPair; };
      const int window = equal_window(spec, model_of_135m());
      EXPECT_GE(untrained(window), layer_state(spec, model_of_135m()).total());
      EXPECT_LT(untrained(window - 1), layer_state(spec, model_of_135m()).total());
    }
  }
  EXPECT_EQ(equal_window(terraced(64), model_of_135m()), 162);
  AttentionSpec none;
  none.window = WindowLayout::kNone;
  EXPECT_EQ(equal_window(none, model_of_135m()), 0);
}

}  // namespace
}  // namespace hedgerow::storage
