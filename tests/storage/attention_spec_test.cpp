#include "storage/attention_spec.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "storage/error.hpp"

namespace hedgerow::storage {
namespace {

TEST(AttentionSpec, DefaultIsOurOwnAndValid) {
  const AttentionSpec spec;
  EXPECT_EQ(spec.start, FeatureMapStart::kOrthogonal);
  EXPECT_EQ(spec.window, WindowLayout::kTerraced);
  EXPECT_EQ(spec.projected_dim(), 32);
  EXPECT_NO_THROW(spec.validate(64));
}

TEST(AttentionSpec, SpellingsRoundTrip) {
  for (const char* word :
       {"hedgehog_softmax", "hedgehog_exp", "t2r", "elu_plus_one", "relu", "identity"}) {
    EXPECT_EQ(to_string(feature_map_kind_from_string(word)), word);
  }
  for (const char* word : {"kaiming", "identity", "orthogonal"}) {
    EXPECT_EQ(to_string(feature_map_start_from_string(word)), word);
  }
  for (const char* word : {"none", "sliding", "terraced"}) {
    EXPECT_EQ(to_string(window_layout_from_string(word)), word);
  }
}

TEST(AttentionSpec, AnUnknownWordNamesTheKeyAndTheKnownWords) {
  try {
    (void)window_layout_from_string("slidng");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(),
                 "attention.window = \"slidng\": expected one of none, sliding, terraced");
  }
}

TEST(AttentionSpec, EachImpossibleCombinationNamesItsKey) {
  const auto refusal = [](const std::function<void(AttentionSpec&)>& change, int head_dim) {
    AttentionSpec spec;
    change(spec);
    try {
      spec.validate(head_dim);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return std::string(error.what()).substr(0, std::string(error.what()).find(' '));
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.feature_dim = 63; }, 64), "attention.feature_dim");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.feature_dim = 0; }, 64), "attention.feature_dim");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.window_size = 0; }, 64), "attention.window_size");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.window_factor = 1e9; }, 64),
            "attention.window_factor");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.feature_map = FeatureMapKind::kT2R; }, 64),
            "attention.negation");
  const auto elu = [](AttentionSpec& s) {
    s.feature_map = FeatureMapKind::kEluPlusOne;
    s.negation = false;
    s.bias = false;
  };
  EXPECT_EQ(refusal(elu, 64), "accepted");
  EXPECT_EQ(refusal(elu, 128), "attention.feature_dim");
  EXPECT_EQ(refusal(elu, 0), "accepted");
  EXPECT_EQ(refusal(
                [&](AttentionSpec& s) {
                  elu(s);
                  s.bias = true;
                },
                64),
            "attention.bias");
}

TEST(AttentionSpec, JsonKeepsEveryField) {
  const AttentionSpec spec{.feature_map = FeatureMapKind::kT2R,
                           .negation = false,
                           .feature_dim = 48,
                           .bias = true,
                           .start = FeatureMapStart::kIdentity,
                           .window = WindowLayout::kSliding,
                           .window_size = 17,
                           .window_factor = 0.25,
                           .train_window_factor = false};
  EXPECT_EQ(nlohmann::json::parse(nlohmann::json(spec).dump()).get<AttentionSpec>(), spec);
}

}  // namespace
}  // namespace hedgerow::storage
