#include "storage/model/attention_spec.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/json/strict_json.hpp"

namespace hedgerow::storage {
namespace {

constexpr int kMaxFeatures = 4096;
constexpr int kMaxTaylorFeatures = 65536;  // 8,385 for a head dimension of 128

template <typename Spellings>
auto value_of(const Spellings& spellings, std::string_view word, std::string_view what) {
  std::string known_words;
  for (const auto& known : spellings) {
    if (known.word == word) return known.value;
    known_words += (known_words.empty() ? "" : ", ") + std::string(known.word);
  }
  throw Error(
      ErrorKind::kUsage,
      std::string(what) + " = \"" + std::string(word) + "\": expected one of " + known_words);
}

[[noreturn]] void refuse_spec(const std::string& key, const std::string& why) {
  throw Error(ErrorKind::kUsage, "attention." + key + " " + why);
}

bool draws_omega(FeatureMapStart start) {
  return start == FeatureMapStart::kGaussian || start == FeatureMapStart::kOrthogonalChi;
}

// The number of features of a map without a projection, given the head dimension.
void check_features_of_head(const AttentionSpec& spec, int head_dim) {
  const bool series = spec.row().series;
  const std::int64_t expected = spec.features_of_head(head_dim);
  if (spec.feature_dim == expected) return;
  refuse_spec("feature_dim",
              "= " + std::to_string(spec.feature_dim) + ": " +
                  std::string(to_string(spec.feature_map)) + " has no projection, so it must be " +
                  (series ? "1 + D + D (D + 1) / 2 = " + std::to_string(expected) +
                                " for the head dimension D = "
                          : "the head dimension ") +
                  std::to_string(head_dim));
}

void check_maps_of_the_exponential(const AttentionSpec& spec) {
  const bool random = spec.row().one_draw;
  const std::string start(to_string(spec.start));
  if (random && !draws_omega(spec.start)) {
    refuse_spec(
        "start",
        "= " + start + ": positive_random draws its features by gaussian or orthogonal_chi");
  }
  if (random && spec.key_maps == KeyMaps::kKvHead) {
    refuse_spec("key_maps",
                "= kv_head: positive_random maps queries and keys by one draw, and each query head "
                "has its own; use query_head");
  }
  if (!random && draws_omega(spec.start)) {
    refuse_spec(
        "start",
        "= " + start + ": only positive_random starts so; use orthogonal, kaiming or identity");
  }
}

void check_temperature(const AttentionSpec& spec) {
  if (spec.row().temperature || spec.temperature == AttentionSpec{}.temperature) return;
  refuse_spec("temperature",
              "= " + std::to_string(spec.temperature) + ": " +
                  std::string(to_string(spec.feature_map)) + " has no temperature; leave it out");
}

}  // namespace

bool AttentionSpec::has_projection() const { return row().projection; }

std::int64_t AttentionSpec::features_of_head(int head_dim) const {
  return row().series ? kernels::num_monomials(head_dim) : head_dim;
}

std::int64_t AttentionSpec::num_key_maps(std::int64_t num_attention_heads,
                                         std::int64_t num_key_value_heads) const {
  return has_projection() && key_maps == KeyMaps::kKvHead ? num_key_value_heads
                                                          : num_attention_heads;
}

std::int64_t AttentionSpec::default_sinks() const {
  return windowed() ? std::min(kUsualSinks, window_size) : 0;
}

std::int64_t AttentionSpec::default_recall_cache() const {
  return recalls() ? std::clamp<std::int64_t>(feature_dim / 2, 0, window_size) : 0;
}

bool AttentionSpec::recalls() const { return window != WindowLayout::kNone && row().positive; }

KeyMaps AttentionSpec::default_key_maps() const {
  return row().one_draw ? KeyMaps::kQueryHead : KeyMaps::kKvHead;
}

// Whole while each query's window begins at a sink or at the token behind them.
std::int64_t AttentionSpec::longest_exact_sequence() const {
  switch (window) {
    case WindowLayout::kNone:
      return 0;
    case WindowLayout::kSliding:
      return window_size + num_sinks;
    case WindowLayout::kTerraced:
      // Windows begin at whole chunks, so that sinks must fill one to count.
      return (num_sinks == window_size ? 3 : 2) * window_size;
  }
  throw Error(ErrorKind::kInternal, "an enumerator of WindowLayout has no length");
}

std::string AttentionSpec::exact_settings() const {
  AttentionSpec without = *this;
  without.num_sinks = 0;
  std::string text = "attention.window_size = " + std::to_string(window_size);
  if (longest_exact_sequence() > without.longest_exact_sequence())
    text += " and attention.num_sinks = " + std::to_string(num_sinks);
  return text;
}

void AttentionSpec::validate(int head_dim) const {
  const std::string kind(to_string(feature_map));
  if (negation && !row().negation) {
    refuse_spec(
        "negation",
        "= true: only the hedgehog maps concatenate the map of -xW; set it to false for " + kind);
  }
  const int most = row().series ? kMaxTaylorFeatures : kMaxFeatures;
  if (feature_dim < 1 || feature_dim > most) {
    refuse_spec("feature_dim",
                "= " + std::to_string(feature_dim) + ": expected 1 to " + std::to_string(most));
  }
  if (negation && feature_dim % 2 != 0) {
    refuse_spec(
        "feature_dim",
        "= " + std::to_string(feature_dim) + ": must be even with negation, half of it is of -xW");
  }
  if (bias && !has_projection()) {
    refuse_spec("bias", "= true: " + kind + " has no projection to add a bias to; set it to false");
  }
  if (bias && !row().takes_bias()) {
    refuse_spec("bias", "= true: " + kind + " has none; set it to false");
  }
  check_maps_of_the_exponential(*this);
  check_temperature(*this);
  if (!has_projection() && head_dim > 0) check_features_of_head(*this, head_dim);
  kernels::visit_options(
      *this, [](const char* key, const auto& value, const kernels::OptionRules& rules) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::int64_t>) {
          const auto most_of_student = static_cast<std::int64_t>(rules.student_max);
          if (most_of_student > 0 && value > most_of_student) {
            refuse_spec(key,
                        "= " + std::to_string(value) + ": expected 0 to " +
                            std::to_string(most_of_student));
          }
        }
      });
  const std::string reason = kernels::why_not(*this);
  if (!reason.empty()) throw Error(ErrorKind::kUsage, "attention." + reason);
  if (!std::isfinite(window_factor) || std::abs(window_factor) > 30.0) {
    refuse_spec(
        "window_factor",
        "= " + std::to_string(window_factor) +
            ": it is a logit, expected -30 to 30 (-2.197 starts the window's share at 0.1)");
  }
}

FeatureMapKind feature_map_kind_from_string(std::string_view word) {
  return value_of(kernels::kFeatureMaps, word, "attention.feature_map");
}
FeatureMapStart feature_map_start_from_string(std::string_view word) {
  return value_of(kernels::kFeatureMapStarts, word, "attention.start");
}
WindowLayout window_layout_from_string(std::string_view word) {
  return value_of(kernels::kWindowLayouts, word, "attention.window");
}
KeyMaps key_maps_from_string(std::string_view word) {
  return value_of(kKeyMaps, word, "attention.key_maps");
}

std::string feature_map_words() {
  std::string words;
  for (const kernels::FeatureMapRow& row : kernels::kFeatureMaps) {
    const bool is_last = &row == &kernels::kFeatureMaps.back();
    words += (words.empty() ? "" : is_last ? " or " : ", ") + std::string(row.word);
  }
  return words;
}

namespace {

// A word in a file for an enum, else the value.
template <typename Value>
nlohmann::json json_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return to_string(value);
  } else {
    return value;
  }
}

void read(const nlohmann::json& json, const char* key, FeatureMapKind& value) {
  value = feature_map_kind_from_string(json.at(key).get<std::string>());
}
void read(const nlohmann::json& json, const char* key, WindowLayout& value) {
  value = window_layout_from_string(json.at(key).get<std::string>());
}
void read(const nlohmann::json& json, const char* key, std::int64_t& value) {
  value = integer_of<std::int64_t>(json, key);
}
template <typename Value>
void read(const nlohmann::json& json, const char* key, Value& value) {
  json.at(key).get_to(value);
}

}  // namespace

void to_json(nlohmann::json& json, const AttentionSpec& spec) {
  json = {{"feature_dim", spec.feature_dim},
          {"bias", spec.bias},
          {"start", to_string(spec.start)},
          {"key_maps", to_string(spec.key_maps)},
          {"window_factor", spec.window_factor},
          {"train_window_factor", spec.train_window_factor},
          {"train_feature_map", spec.train_feature_map}};
  kernels::visit_options(spec, [&](const char* key, const auto& value, const auto& /*rules*/) {
    json[key] = json_of(value);
  });
}

void from_json(const nlohmann::json& json, AttentionSpec& spec) {
  static_cast<kernels::HybridOptions&>(spec) = kernels::HybridOptions{};
  kernels::visit_options(spec,
                         [&](const char* key, auto& value, const kernels::OptionRules& rules) {
                           if (!rules.later || json.contains(key)) read(json, key, value);
                         });
  spec.feature_dim = integer_of<int>(json, "feature_dim");
  json.at("bias").get_to(spec.bias);
  spec.start = feature_map_start_from_string(json.at("start").get<std::string>());
  json.at("window_factor").get_to(spec.window_factor);
  json.at("train_window_factor").get_to(spec.train_window_factor);
  spec.train_feature_map = json.value("train_feature_map", spec.train_feature_map);
  spec.key_maps =
      key_maps_from_string(json.value("key_maps", std::string(to_string(KeyMaps::kQueryHead))));
}

}  // namespace hedgerow::storage
