#include "coordinator/wire/kernel_sweep.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::wire {
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

template <typename Value>
void require_range(const std::string& option, Value value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  refuse(option,
         "a number from " + std::to_string(least) + " to " + std::to_string(most),
         std::to_string(value));
}

template <typename Values>
void require_some(const std::string& option, const Values& values) {
  if (values.empty())
    throw Error(ErrorKind::kUsage, option + ": expected one value or more, found none");
}

template <typename Value, typename Parse>
std::vector<Value> parsed(const nlohmann::json& words, Parse parse) {
  std::vector<Value> values;
  for (const nlohmann::json& word : words) values.push_back(parse(word.get<std::string>()));
  return values;
}

// In the words of the command line; AttentionSpec would answer in the recipe's.
void check_features(const KernelSweep& sweep, FeatureMapKind map) {
  const std::string with = " with --map " + std::string(storage::to_string(map));
  if (map == FeatureMapKind::kTaylor && sweep.head_dim > KernelSweep::kMaxTaylorHeadDim) {
    refuse("--head-dim",
           "at most " + std::to_string(KernelSweep::kMaxTaylorHeadDim) + with +
               ", which has 1 + D + D (D + 1) / 2 features",
           std::to_string(sweep.head_dim));
  }
  for (const int count : sweep.features_of(map)) {
    if (!sweep.attention(map, count, sweep.layouts.front()).negation || count % 2 == 0) continue;
    refuse("--features",
           "even numbers" + with + ", half of whose features are of -xW",
           std::to_string(count));
  }
}

}  // namespace

storage::AttentionSpec KernelSweep::attention(FeatureMapKind map,
                                              int num_features,
                                              storage::WindowLayout layout) const {
  storage::AttentionSpec spec;
  spec.feature_map = map;
  spec.negation = map == FeatureMapKind::kHedgehogSoftmax || map == FeatureMapKind::kHedgehogExp;
  spec.bias = spec.has_projection() && map != FeatureMapKind::kPositiveRandom;
  if (map == FeatureMapKind::kPositiveRandom) spec.start = storage::FeatureMapStart::kOrthogonalChi;
  spec.feature_dim = num_features;
  spec.window = layout;
  spec.window_size = window;
  return spec;
}

std::vector<int> KernelSweep::features_of(FeatureMapKind map) const {
  storage::AttentionSpec spec;
  spec.feature_map = map;
  if (spec.has_projection()) return features;
  const bool series = map == FeatureMapKind::kTaylor;
  return {series ? 1 + head_dim + head_dim * (head_dim + 1) / 2 : head_dim};
}

std::int64_t KernelSweep::num_sequences(std::int64_t length, BenchDirection direction) const {
  const std::int64_t tokens = direction == BenchDirection::kDecode
                                  ? *std::max_element(lengths.begin(), lengths.end())
                                  : length;
  return std::max<std::int64_t>(1, batch_tokens / tokens);
}

std::int64_t KernelSweep::num_measurements() const {
  std::size_t num_features = 0;
  for (const FeatureMapKind map : maps) num_features += features_of(map).size();
  const std::size_t num_lengths = std::set(lengths.begin(), lengths.end()).size();
  return static_cast<std::int64_t>(heads.size() * directions.size() * num_lengths * layouts.size() *
                                   num_features * dtypes.size());
}

void KernelSweep::validate() const {
  require_some("--lengths", lengths);
  require_some("--features", features);
  require_some("--heads", heads);
  require_some("--layout", layouts);
  require_some("--dtype", dtypes);
  require_some("--map", maps);
  require_some("--direction", directions);
  for (const std::int64_t length : lengths) require_range("--lengths", length, 1, kMaxLength);
  for (const int count : features) require_range("--features", count, 1, kMaxFeatures);
  for (const HeadCounts& count : heads) {
    if (count.kv >= 1 && count.query >= 1 && count.query <= kMaxHeads &&
        count.query % count.kv == 0)
      continue;
    refuse("--heads",
           "QUERY:KV with 1 to " + std::to_string(kMaxHeads) + " query heads, a multiple of KV",
           to_string(count));
  }
  require_range("--head-dim", head_dim, 1, kMaxHeadDim);
  require_range("--window", window, 1, kMaxWindow);
  require_range("--batch-tokens", batch_tokens, 1, kMaxBatchTokens);
  require_range("--repeats", repeats, 1, kMaxRepeats);
  require_range("--threads", threads, 0, kMaxThreads);
  for (const FeatureMapKind map : maps) {
    if (std::find(kBenchMaps.begin(), kBenchMaps.end(), map) == kBenchMaps.end())
      refuse("--map", "a map of the hybrid", std::string(to_string(map)));
    check_features(*this, map);
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

BenchDirection bench_direction_from_string(std::string_view word) {
  return value_of(kBenchDirections, word, "--direction");
}
BenchDtype bench_dtype_from_string(std::string_view word) {
  return value_of(kBenchDtypes, word, "--dtype");
}

HeadCounts head_counts_from_string(std::string_view word) {
  HeadCounts heads;
  const char* end = word.data() + word.size();
  const auto query = std::from_chars(word.data(), end, heads.query);
  const bool has_kv = query.ec == std::errc() && query.ptr != end && *query.ptr == ':';
  if (has_kv) {
    const auto kv = std::from_chars(query.ptr + 1, end, heads.kv);
    if (kv.ec == std::errc() && kv.ptr == end) return heads;
  }
  refuse("--heads", "QUERY:KV, as 32:8", std::string(word));
}

void to_json(nlohmann::json& json, const KernelSweep& sweep) {
  json = {{"lengths", sweep.lengths},
          {"features", sweep.features},
          {"heads", words_of(sweep.heads)},
          {"head_dim", sweep.head_dim},
          {"window", sweep.window},
          {"layouts", words_of(sweep.layouts)},
          {"dtypes", words_of(sweep.dtypes)},
          {"maps", words_of(sweep.maps)},
          {"directions", words_of(sweep.directions)},
          {"batch_tokens", sweep.batch_tokens},
          {"repeats", sweep.repeats},
          {"threads", sweep.threads},
          {"device", sweep.device}};
}

void from_json(const nlohmann::json& json, KernelSweep& sweep) {
  json.at("lengths").get_to(sweep.lengths);
  json.at("features").get_to(sweep.features);
  sweep.heads = parsed<HeadCounts>(json.at("heads"), head_counts_from_string);
  json.at("head_dim").get_to(sweep.head_dim);
  json.at("window").get_to(sweep.window);
  sweep.layouts =
      parsed<storage::WindowLayout>(json.at("layouts"), storage::window_layout_from_string);
  sweep.dtypes = parsed<BenchDtype>(json.at("dtypes"), bench_dtype_from_string);
  sweep.maps = parsed<FeatureMapKind>(json.at("maps"), storage::feature_map_kind_from_string);
  sweep.directions = parsed<BenchDirection>(json.at("directions"), bench_direction_from_string);
  json.at("batch_tokens").get_to(sweep.batch_tokens);
  json.at("repeats").get_to(sweep.repeats);
  json.at("threads").get_to(sweep.threads);
  json.at("device").get_to(sweep.device);
}

}  // namespace hedgerow::wire
