#include "coordinator/bench/kernel_sweep.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"

namespace hedgerow::measure {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::FeatureMapKind;

[[noreturn]] void refuse(const std::string& option,
                         const std::string& expected,
                         const std::string& found) {
  throw Error(ErrorKind::kUsage, option + ": expected " + expected + ", found '" + found + "'");
}

template <typename Values>
auto value_of(const Values& values, std::string_view word, const std::string& option) {
  std::string known;
  for (const auto value : values) {
    if (to_string(value) == word) return value;
    known += (known.empty() ? "" : ", ") + std::string(to_string(value));
  }
  refuse(option, known, std::string(word));
}

HeadCounts head_counts_from_string(const std::string& word) {
  HeadCounts heads;
  int end = 0;
  const int count = std::sscanf(word.c_str(), "%ld:%ld%n", &heads.query, &heads.kv, &end);
  if (count == 2 && end == static_cast<int>(word.size()) && heads.kv >= 1 && heads.query >= 1 &&
      heads.query <= KernelSweep::kMaxHeads && heads.query % heads.kv == 0)
    return heads;
  refuse("--heads",
         "QUERY:KV, as 32:8, with 1 to " + std::to_string(KernelSweep::kMaxHeads) +
             " query heads, a multiple of KV",
         word);
}

// Replaces `values` by what the words under `key` mean.
template <typename Value, typename Parse>
void take(const nlohmann::json& object, const char* key, std::vector<Value>& values, Parse parse) {
  if (!object.contains(key)) return;
  values.clear();
  for (const nlohmann::json& word : object[key]) values.push_back(parse(word.get<std::string>()));
}

template <typename Value>
void take(const nlohmann::json& object, const char* key, Value& value) {
  if (object.contains(key)) object[key].get_to(value);
}

}  // namespace

storage::AttentionSpec KernelSweep::attention(FeatureMapKind map,
                                              int num_features,
                                              storage::WindowLayout layout) const {
  storage::AttentionSpec spec;
  spec.feature_map = map;
  spec.negation = spec.row().negation;
  spec.bias = spec.row().takes_bias();
  if (spec.row().one_draw) spec.start = storage::FeatureMapStart::kOrthogonalChi;
  spec.feature_dim = num_features;
  spec.window = layout;
  spec.window_size = window;
  spec.num_sinks = sinks && layout != storage::WindowLayout::kNone ? *sinks : spec.default_sinks();
  spec.key_maps = key_maps.value_or(spec.default_key_maps());
  return spec;
}

std::vector<int> KernelSweep::features_of(FeatureMapKind map) const {
  storage::AttentionSpec spec;
  spec.feature_map = map;
  if (spec.has_projection()) return features;
  return {static_cast<int>(spec.features_of_head(head_dim))};
}

std::int64_t KernelSweep::num_sequences(std::int64_t length, BenchDirection direction) const {
  const std::int64_t tokens = direction == BenchDirection::kDecode
                                  ? *std::max_element(lengths.begin(), lengths.end())
                                  : length;
  return std::max<std::int64_t>(1, batch_tokens / tokens);
}

void KernelSweep::validate() const {
  for (const FeatureMapKind map : maps) {
    for (const storage::WindowLayout layout : layouts) {
      for (const int count : features_of(map)) attention(map, count, layout).validate(head_dim);
    }
  }
}

std::string_view to_string(BenchDirection direction) {
  switch (direction) {
    case BenchDirection::kForward:
      return "forward";
    case BenchDirection::kBackward:
      return "backward";
    case BenchDirection::kTraining:
      return "training";
    case BenchDirection::kDecode:
      break;
  }
  return "decode";
}

std::string_view to_string(BenchDtype dtype) {
  return dtype == BenchDtype::kFloat32 ? "fp32" : "bf16";
}

std::string to_string(const HeadCounts& heads) {
  return std::to_string(heads.query) + ":" + std::to_string(heads.kv);
}

BenchDtype bench_dtype_from_string(std::string_view word) {
  return value_of(kBenchDtypes, word, "--dtype");
}

void from_json(const nlohmann::json& json, KernelSweep& sweep) {
  const auto direction = [](const auto& word) {
    return value_of(kBenchDirections, word, "--direction");
  };
  const auto map = [](const auto& word) { return value_of(kBenchMaps, word, "--map"); };
  take(json, "lengths", sweep.lengths);
  take(json, "features", sweep.features);
  take(json, "heads", sweep.heads, head_counts_from_string);
  take(json, "head_dim", sweep.head_dim);
  take(json, "window", sweep.window);
  if (json.contains("sinks")) sweep.sinks = json["sinks"].get<int>();
  if (json.contains("key_maps"))
    sweep.key_maps = storage::key_maps_from_string(json["key_maps"].get<std::string>());
  take(json, "layouts", sweep.layouts, storage::window_layout_from_string);
  take(json, "dtypes", sweep.dtypes, bench_dtype_from_string);
  take(json, "maps", sweep.maps, map);
  take(json, "directions", sweep.directions, direction);
  take(json, "batch_tokens", sweep.batch_tokens);
  take(json, "repeats", sweep.repeats);
  take(json, "threads", sweep.threads);
  take(json, "device", sweep.device);
}

}  // namespace hedgerow::measure
