#include "storage/model/attention_spec.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/base/strict_json.hpp"

namespace hedgerow::storage {
namespace {

constexpr int kMaxFeatures = 4096;
constexpr int kMaxSinks = 16;
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
  const std::string order = "= " + std::to_string(spec.order);
  if (!spec.row().series) {
    if (spec.order != AttentionSpec{}.order)
      refuse_spec("order", order + ": only taylor has an order; leave it out");
  } else if (spec.order % 2 != 0) {
    refuse_spec(
        "order",
        order +
            ": odd orders of the Taylor series give weights below 0 and denominators that are "
            "not positive; use 2");
  } else if (spec.order != 2) {
    refuse_spec("order", order + ": expected 2, the one even order whose features are held");
  }
}

void check_temperature(const AttentionSpec& spec) {
  const std::string found = "= " + std::to_string(spec.temperature);
  if (!spec.row().temperature && spec.temperature != AttentionSpec{}.temperature) {
    refuse_spec("temperature",
                found + ": " + std::string(to_string(spec.feature_map)) +
                    " has no temperature; leave it out");
  }
  if (!(spec.temperature > 0.0 && spec.temperature <= AttentionSpec::kMaxTemperature)) {
    refuse_spec("temperature",
                found + ": expected more than 0, and at most " +
                    std::to_string(static_cast<int>(AttentionSpec::kMaxTemperature)));
  }
}

void check_sinks(const AttentionSpec& spec) {
  const std::string found = "= " + std::to_string(spec.num_sinks);
  if (spec.num_sinks < 0 || spec.num_sinks > kMaxSinks)
    refuse_spec("num_sinks", found + ": expected 0 to " + std::to_string(kMaxSinks));
  if (spec.window == WindowLayout::kNone && spec.num_sinks > 0) {
    refuse_spec("num_sinks",
                found + ": sinks belong to a window, and attention.window is none; use 0");
  }
  if (spec.window != WindowLayout::kNone && spec.num_sinks > spec.window_size) {
    refuse_spec("num_sinks",
                found + ": more than attention.window_size = " + std::to_string(spec.window_size) +
                    "; use at most that");
  }
}

void check_recall_cache(const AttentionSpec& spec) {
  const std::string found = "= " + std::to_string(spec.recall_cache);
  if (spec.recall_cache < 0) refuse_spec("recall_cache", found + ": expected 0 (none) or more");
  if (spec.window == WindowLayout::kNone && spec.recall_cache > 0) {
    refuse_spec("recall_cache",
                found +
                    ": the cache holds keys that left a window, and attention.window is none; "
                    "use 0");
  }
  if (spec.window != WindowLayout::kNone && spec.recall_cache > spec.window_size) {
    refuse_spec("recall_cache",
                found + ": more than attention.window_size = " + std::to_string(spec.window_size) +
                    ", a chunk's keys; use at most that");
  }
  if (spec.recall_cache > 0 && !spec.row().positive) {
    refuse_spec("recall_cache",
                found + ": features of " + std::string(to_string(spec.feature_map)) +
                    " have signs, so what the state recalls of a key divides by what may be 0; "
                    "use 0, or another feature_map");
  }
}

void check_linear_cap(const AttentionSpec& spec) {
  const std::string found = "= " + std::to_string(spec.linear_cap);
  if (spec.linear_cap < 0 || spec.linear_cap > kMaxLinearCap)
    refuse_spec("linear_cap", found + ": expected 0 (none) to " + std::to_string(kMaxLinearCap));
  if (spec.window == WindowLayout::kNone && spec.linear_cap > 0) {
    refuse_spec("linear_cap",
                found +
                    ": the cap weighs the linear branch against a window, and attention.window is "
                    "none; use 0");
  }
}

}  // namespace

bool AttentionSpec::has_projection() const { return row().projection; }

std::int64_t AttentionSpec::features_of_head(int head_dim) const {
  return row().series ? kernels::num_monomials(head_dim, AttentionSpec{}.order) : head_dim;
}

std::int64_t AttentionSpec::num_key_maps(std::int64_t num_attention_heads,
                                         std::int64_t num_key_value_heads) const {
  return has_projection() && key_maps == KeyMaps::kKvHead ? num_key_value_heads
                                                          : num_attention_heads;
}

int AttentionSpec::default_sinks() const {
  return window == WindowLayout::kNone ? 0 : std::min(AttentionSpec{}.num_sinks, window_size);
}

int AttentionSpec::default_recall_cache() const {
  return recalls() ? std::clamp(feature_dim / 2, 0, window_size) : 0;
}

bool AttentionSpec::recalls() const { return window != WindowLayout::kNone && row().positive; }

KeyMaps AttentionSpec::default_key_maps() const {
  return row().one_draw ? KeyMaps::kQueryHead : KeyMaps::kKvHead;
}

// Whole while each query's window begins at a sink or at the token behind them.
int AttentionSpec::longest_exact_sequence() const {
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
  if (window != WindowLayout::kNone && (window_size < 1 || window_size > 65536)) {
    refuse_spec("window_size", "= " + std::to_string(window_size) + ": expected 1 to 65536");
  }
  check_sinks(*this);
  check_recall_cache(*this);
  check_linear_cap(*this);
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

void to_json(nlohmann::json& json, const AttentionSpec& spec) {
  json = {{"feature_map", to_string(spec.feature_map)},
          {"negation", spec.negation},
          {"feature_dim", spec.feature_dim},
          {"bias", spec.bias},
          {"start", to_string(spec.start)},
          {"key_maps", to_string(spec.key_maps)},
          {"window", to_string(spec.window)},
          {"window_size", spec.window_size},
          {"num_sinks", spec.num_sinks},
          {"recall_cache", spec.recall_cache},
          {"linear_cap", spec.linear_cap},
          {"window_factor", spec.window_factor},
          {"train_window_factor", spec.train_window_factor},
          {"train_feature_map", spec.train_feature_map},
          {"order", spec.order},
          {"temperature", spec.temperature}};
}

void from_json(const nlohmann::json& json, AttentionSpec& spec) {
  spec.feature_map = feature_map_kind_from_string(json.at("feature_map").get<std::string>());
  json.at("negation").get_to(spec.negation);
  spec.feature_dim = integer_of<int>(json, "feature_dim");
  json.at("bias").get_to(spec.bias);
  spec.start = feature_map_start_from_string(json.at("start").get<std::string>());
  spec.window = window_layout_from_string(json.at("window").get<std::string>());
  spec.window_size = integer_of<int>(json, "window_size");
  json.at("window_factor").get_to(spec.window_factor);
  json.at("train_window_factor").get_to(spec.train_window_factor);
  spec.train_feature_map = json.value("train_feature_map", spec.train_feature_map);
  if (json.contains("order")) spec.order = integer_of<int>(json, "order");
  spec.temperature = json.value("temperature", spec.temperature);
  spec.num_sinks = json.contains("num_sinks") ? integer_of<int>(json, "num_sinks") : 0;
  spec.recall_cache = json.contains("recall_cache") ? integer_of<int>(json, "recall_cache") : 0;
  spec.linear_cap = json.contains("linear_cap") ? integer_of<int>(json, "linear_cap") : 0;
  spec.key_maps =
      key_maps_from_string(json.value("key_maps", std::string(to_string(KeyMaps::kQueryHead))));
}

}  // namespace hedgerow::storage
