#include "storage/model/attention_spec.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"

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
  for (const kernels::FeatureMapRow& row : kernels::kFeatureMaps)
    EXPECT_EQ(feature_map_kind_from_string(row.word), row.value);
  for (const char* word : {"kaiming", "identity", "orthogonal", "gaussian", "orthogonal_chi"}) {
    EXPECT_EQ(to_string(feature_map_start_from_string(word)), word);
  }
  for (const char* word : {"kv_head", "query_head"})
    EXPECT_EQ(to_string(key_maps_from_string(word)), word);
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

std::string sentence(const std::function<void(AttentionSpec&)>& change, int head_dim) {
  AttentionSpec spec;
  change(spec);
  try {
    spec.validate(head_dim);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::function<void(AttentionSpec&)>& change, int head_dim) {
  const std::string text = sentence(change, head_dim);
  return text.substr(0, text.find(' '));
}

void become_taylor(AttentionSpec& spec) {
  spec.feature_map = FeatureMapKind::kTaylor;
  spec.negation = false;
  spec.bias = false;
  spec.feature_dim = 2145;
}

void become_positive_random(AttentionSpec& spec) {
  spec.feature_map = FeatureMapKind::kPositiveRandom;
  spec.negation = false;
  spec.bias = false;
  spec.start = FeatureMapStart::kOrthogonalChi;
  spec.key_maps = KeyMaps::kQueryHead;
}

TEST(AttentionSpec, OfPositiveRandomFeaturesIsDrawnAndHasNoBias) {
  AttentionSpec spec;
  become_positive_random(spec);
  EXPECT_NO_THROW(spec.validate(64));
  EXPECT_TRUE(spec.has_projection());
  const auto with = [](const auto& change) {
    return refusal(
        [&](AttentionSpec& s) {
          become_positive_random(s);
          change(s);
        },
        64);
  };
  EXPECT_EQ(with([](AttentionSpec& s) { s.start = FeatureMapStart::kGaussian; }), "accepted");
  EXPECT_EQ(with([](AttentionSpec& s) { s.start = FeatureMapStart::kOrthogonal; }),
            "attention.start");
  EXPECT_EQ(with([](AttentionSpec& s) { s.bias = true; }), "attention.bias");
  EXPECT_EQ(with([](AttentionSpec& s) { s.key_maps = KeyMaps::kKvHead; }), "attention.key_maps");
  EXPECT_EQ(with([](AttentionSpec& s) { s.negation = true; }), "attention.negation");
  EXPECT_EQ(with([](AttentionSpec& s) { s.feature_dim = 4097; }), "attention.feature_dim");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.start = FeatureMapStart::kGaussian; }, 64),
            "attention.start");
}

TEST(AttentionSpec, OfTheTaylorSeriesHasItsFeatures) {
  AttentionSpec spec;
  become_taylor(spec);
  EXPECT_NO_THROW(spec.validate(64));
  EXPECT_FALSE(spec.has_projection());
  EXPECT_EQ(
      sentence(become_taylor, 128),
      "attention.feature_dim = 2145: taylor has no projection, so it must be 1 + D + D (D + 1) "
      "/ 2 = 8385 for the head dimension D = 128");
}

TEST(AttentionSpec, OfExpHasATemperatureAndTheFeaturesOfTheHead) {
  const auto with = [](double temperature, int head_dim = 64) {
    return refusal(
        [=](AttentionSpec& s) {
          s.feature_map = FeatureMapKind::kExp;
          s.negation = false;
          s.bias = false;
          s.temperature = temperature;
        },
        head_dim);
  };
  for (const double temperature : {0.5, 1.0, 2.0, 16.0}) EXPECT_EQ(with(temperature), "accepted");
  for (const double temperature : {0.0, -1.0, 16.5, std::nan("")})
    EXPECT_EQ(with(temperature), "attention.temperature");
  EXPECT_EQ(with(1.0, 128), "attention.feature_dim");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.temperature = 2.0; }, 64), "attention.temperature");
}

TEST(AttentionSpec, OfTheProjectedEluHasWeightsAndABias) {
  const auto of = [](bool negation) {
    return refusal(
        [=](AttentionSpec& s) {
          s.feature_map = FeatureMapKind::kProjectedEluPlusOne;
          s.negation = negation;
          s.feature_dim = 48;
        },
        64);
  };
  EXPECT_EQ(of(false), "accepted");
  EXPECT_EQ(of(true), "attention.negation");
}

TEST(AttentionSpec, EachImpossibleCombinationNamesItsKey) {
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.feature_dim = 63; }, 64), "attention.feature_dim");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.feature_dim = 0; }, 64), "attention.feature_dim");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.window_size = 0; }, 64), "attention.window_size");
  for (const int sinks : {-1, 17, 65})
    EXPECT_EQ(refusal([&](AttentionSpec& s) { s.num_sinks = sinks; }, 64), "attention.num_sinks");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.window_size = 3; }, 64), "attention.num_sinks");
  EXPECT_EQ(refusal([](AttentionSpec& s) { s.window = WindowLayout::kNone; }, 64),
            "attention.num_sinks");
  for (const int cap : {-1, (1 << 20) + 1})
    EXPECT_EQ(refusal([&](AttentionSpec& s) { s.linear_cap = cap; }, 64), "attention.linear_cap");
  EXPECT_EQ(refusal(
                [](AttentionSpec& s) {
                  s.window = WindowLayout::kNone;
                  s.num_sinks = 0;
                  s.linear_cap = 9;
                },
                64),
            "attention.linear_cap");
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

TEST(AttentionSpec, KeyMapsAreAsManyAsKvHeadsWhereTheyHaveParameters) {
  AttentionSpec spec;
  EXPECT_EQ(spec.num_key_maps(9, 3), 3);
  spec.feature_map = FeatureMapKind::kRelu;
  EXPECT_EQ(spec.num_key_maps(9, 3), 9);
  spec = {};
  spec.key_maps = KeyMaps::kQueryHead;
  EXPECT_EQ(spec.num_key_maps(9, 3), 9);
}

TEST(AttentionSpec, JsonKeepsEveryField) {
  AttentionSpec spec;
  spec.feature_map = FeatureMapKind::kT2R;
  spec.negation = false;
  spec.temperature = 1.25;
  spec.window = WindowLayout::kSliding;
  spec.window_size = 17;
  spec.num_sinks = 3;
  spec.recall_cache = 5;
  spec.linear_cap = 90;
  spec.feature_dim = 48;
  spec.bias = false;
  spec.start = FeatureMapStart::kIdentity;
  spec.key_maps = KeyMaps::kQueryHead;
  spec.window_factor = 0.25;
  spec.train_window_factor = false;
  spec.train_feature_map = false;
  EXPECT_EQ(nlohmann::json::parse(nlohmann::json(spec).dump()).get<AttentionSpec>(), spec);
}

TEST(AttentionSpec, JsonOfAnEarlierBuildMeansWhatThatBuildDid) {
  nlohmann::json json = AttentionSpec{};
  for (const char* key :
       {"temperature", "train_feature_map", "num_sinks", "key_maps", "recall_cache", "linear_cap"})
    json.erase(key);
  json["order"] = 2;
  AttentionSpec expected;
  expected.key_maps = KeyMaps::kQueryHead;
  expected.num_sinks = 0;
  EXPECT_EQ(json.get<AttentionSpec>(), expected);
  json.erase("bias");
  EXPECT_THROW(json.get<AttentionSpec>(), nlohmann::json::exception);
}

}  // namespace
}  // namespace hedgerow::storage
