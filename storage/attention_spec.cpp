#include "storage/attention_spec.hpp"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "storage/error.hpp"

namespace hedgerow::storage {
namespace {

template <typename Enum, std::size_t N>
using Words = std::array<std::pair<Enum, std::string_view>, N>;

constexpr Words<FeatureMapKind, 6> kKinds{{
    {FeatureMapKind::kHedgehogSoftmax, "hedgehog_softmax"},
    {FeatureMapKind::kHedgehogExp, "hedgehog_exp"},
    {FeatureMapKind::kT2R, "t2r"},
    {FeatureMapKind::kEluPlusOne, "elu_plus_one"},
    {FeatureMapKind::kRelu, "relu"},
    {FeatureMapKind::kIdentity, "identity"},
}};
constexpr Words<FeatureMapStart, 3> kStarts{{
    {FeatureMapStart::kKaiming, "kaiming"},
    {FeatureMapStart::kIdentity, "identity"},
    {FeatureMapStart::kOrthogonal, "orthogonal"},
}};
constexpr Words<WindowLayout, 3> kLayouts{{
    {WindowLayout::kNone, "none"},
    {WindowLayout::kSliding, "sliding"},
    {WindowLayout::kTerraced, "terraced"},
}};

template <typename Enum, std::size_t N>
std::string_view word_of(const Words<Enum, N>& words, Enum value) {
  for (const auto& [known, word] : words) {
    if (known == value) return word;
  }
  throw Error(ErrorKind::kInternal, "an enumerator of AttentionSpec has no spelling");
}

template <typename Enum, std::size_t N>
Enum value_of(const Words<Enum, N>& words, std::string_view word, std::string_view what) {
  std::string known_words;
  for (const auto& [value, known] : words) {
    if (known == word) return value;
    known_words += (known_words.empty() ? "" : ", ") + std::string(known);
  }
  throw Error(
      ErrorKind::kUsage,
      std::string(what) + " = \"" + std::string(word) + "\": expected one of " + known_words);
}

[[noreturn]] void refuse(const std::string& key, const std::string& why) {
  throw Error(ErrorKind::kUsage, "attention." + key + " " + why);
}

bool is_hedgehog(FeatureMapKind kind) {
  return kind == FeatureMapKind::kHedgehogSoftmax || kind == FeatureMapKind::kHedgehogExp;
}

}  // namespace

bool AttentionSpec::has_projection() const {
  return is_hedgehog(feature_map) || feature_map == FeatureMapKind::kT2R;
}

void AttentionSpec::validate(int head_dim) const {
  const std::string kind(to_string(feature_map));
  if (negation && !is_hedgehog(feature_map)) {
    refuse(
        "negation",
        "= true: only the hedgehog maps concatenate the map of -xW; set it to false for " + kind);
  }
  if (feature_dim < 1 || feature_dim > 4096) {
    refuse("feature_dim", "= " + std::to_string(feature_dim) + ": expected 1 to 4096");
  }
  if (negation && feature_dim % 2 != 0) {
    refuse(
        "feature_dim",
        "= " + std::to_string(feature_dim) + ": must be even with negation, half of it is of -xW");
  }
  if (bias && !has_projection()) {
    refuse("bias", "= true: " + kind + " has no projection to add a bias to; set it to false");
  }
  if (!has_projection() && head_dim > 0 && feature_dim != head_dim) {
    refuse("feature_dim",
           "= " + std::to_string(feature_dim) + ": " + kind +
               " has no projection, so it must be the head dimension " + std::to_string(head_dim));
  }
  if (window != WindowLayout::kNone && (window_size < 1 || window_size > 65536)) {
    refuse("window_size", "= " + std::to_string(window_size) + ": expected 1 to 65536");
  }
  if (!std::isfinite(window_factor) || std::abs(window_factor) > 30.0) {
    refuse("window_factor",
           "= " + std::to_string(window_factor) +
               ": it is a logit, expected -30 to 30 (-2.197 starts the window's share at 0.1)");
  }
}

std::string_view to_string(FeatureMapKind kind) { return word_of(kKinds, kind); }
std::string_view to_string(FeatureMapStart start) { return word_of(kStarts, start); }
std::string_view to_string(WindowLayout layout) { return word_of(kLayouts, layout); }

FeatureMapKind feature_map_kind_from_string(std::string_view word) {
  return value_of(kKinds, word, "attention.feature_map");
}
FeatureMapStart feature_map_start_from_string(std::string_view word) {
  return value_of(kStarts, word, "attention.start");
}
WindowLayout window_layout_from_string(std::string_view word) {
  return value_of(kLayouts, word, "attention.window");
}

void to_json(nlohmann::json& json, const AttentionSpec& spec) {
  json = {{"feature_map", to_string(spec.feature_map)},
          {"negation", spec.negation},
          {"feature_dim", spec.feature_dim},
          {"bias", spec.bias},
          {"start", to_string(spec.start)},
          {"window", to_string(spec.window)},
          {"window_size", spec.window_size},
          {"window_factor", spec.window_factor},
          {"train_window_factor", spec.train_window_factor}};
}

void from_json(const nlohmann::json& json, AttentionSpec& spec) {
  spec.feature_map = feature_map_kind_from_string(json.at("feature_map").get<std::string>());
  json.at("negation").get_to(spec.negation);
  json.at("feature_dim").get_to(spec.feature_dim);
  json.at("bias").get_to(spec.bias);
  spec.start = feature_map_start_from_string(json.at("start").get<std::string>());
  spec.window = window_layout_from_string(json.at("window").get<std::string>());
  json.at("window_size").get_to(spec.window_size);
  json.at("window_factor").get_to(spec.window_factor);
  json.at("train_window_factor").get_to(spec.train_window_factor);
}

}  // namespace hedgerow::storage
