// What `hedgerow bench kernels` sweeps: `hedgerow` gives its options, as JSON, to
// `hedgerow-worker bench-kernels` on its stdin. Every combination is one measurement. Here because
// `hedgerow` looks for mistakes before anything runs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/model/attention_spec.hpp"

namespace hedgerow::measure {

enum class BenchDirection { kForward, kBackward, kTraining, kDecode };
enum class BenchDtype { kBfloat16, kFloat32 };

// All that may be swept. (The identity is no map of the hybrid: its weights can be below 0.)
inline constexpr std::array kBenchDirections{BenchDirection::kForward,
                                             BenchDirection::kBackward,
                                             BenchDirection::kTraining,
                                             BenchDirection::kDecode};
inline constexpr std::array kBenchDtypes{BenchDtype::kBfloat16, BenchDtype::kFloat32};
inline constexpr std::array kBenchLayouts{storage::WindowLayout::kTerraced,
                                          storage::WindowLayout::kSliding,
                                          storage::WindowLayout::kNone};
inline constexpr std::array kBenchKeyMaps{storage::KeyMaps::kKvHead, storage::KeyMaps::kQueryHead};
inline constexpr auto kBenchMaps = [] {
  constexpr auto is_swept = [](const kernels::FeatureMapRow& row) { return row.positive; };
  constexpr auto count = std::ranges::count_if(kernels::kFeatureMaps, is_swept);
  std::array<storage::FeatureMapKind, count> maps{};
  std::size_t next = 0;
  for (const kernels::FeatureMapRow& row : kernels::kFeatureMaps) {
    if (is_swept(row)) maps[next++] = row.value;
  }
  return maps;
}();

struct HeadCounts {
  std::int64_t query = 9, kv = 3;
  bool operator==(const HeadCounts&) const = default;
};

struct KernelSweep {
  // The most that can be asked for: beyond any measurement, and an answer to a slip of the hand.
  // F, W and sinks as AttentionSpec::validate has them.
  static constexpr int kMaxLength = 1 << 24, kMaxHeads = 1024, kMaxHeadDim = 1024;
  static constexpr int kMaxFeatures = 4096, kMaxWindow = 65536, kMaxSinks = 16;
  static constexpr int kMaxBatchTokens = 1 << 30, kMaxRepeats = 1 << 20, kMaxThreads = 4096;

  std::vector<std::int64_t> lengths = {64, 128, 256, 512, 1024, 2048, 4096};  // T; decode: context
  std::vector<int> features = {64};      // F, of the maps that have a projection
  std::vector<HeadCounts> heads = {{}};  // SmolLM2-135M's unless told
  int head_dim = 64;                     // D
  int window = 64;                       // W
  // Absent: what a recipe has that leaves them out.
  std::optional<int> sinks;
  std::optional<storage::KeyMaps> key_maps;
  std::vector<storage::WindowLayout> layouts = {storage::WindowLayout::kTerraced,
                                                storage::WindowLayout::kSliding};
  std::vector<BenchDtype> dtypes = {BenchDtype::kBfloat16};
  std::vector<storage::FeatureMapKind> maps = {storage::FeatureMapKind::kHedgehogSoftmax};
  std::vector<BenchDirection> directions = {
      BenchDirection::kForward, BenchDirection::kBackward, BenchDirection::kDecode};
  std::int64_t batch_tokens = 4096;  // sequences = batch_tokens / T, at least 1
  int repeats = 5;
  int threads = 0;  // of the CPU; 0: as many as cores
  std::string device = "auto";

  // The attention of one combination; F follows from D alone where the map has no projection.
  [[nodiscard]] storage::AttentionSpec attention(storage::FeatureMapKind map,
                                                 int num_features,
                                                 storage::WindowLayout layout) const;
  // The F that `map` is swept over: `features`, or the one that it has.
  [[nodiscard]] std::vector<int> features_of(storage::FeatureMapKind map) const;
  // T is swept over: B sequences. Decode keeps the batch of the longest context, so that a step's
  // time shows what the context costs and not what the batch does.
  [[nodiscard]] std::int64_t num_sequences(std::int64_t length, BenchDirection direction) const;
  // Holds every combination to AttentionSpec's rules; numbers are held to their limits by the
  // command line. Throws kUsage.
  void validate() const;
};

// "forward", "backward", "training" (both together), "decode"; "bf16", "fp32"; "9:3" (query heads,
// key and value heads). bench_dtype_from_string throws kUsage
// listing what it knows.
[[nodiscard]] std::string_view to_string(BenchDirection direction);
[[nodiscard]] std::string_view to_string(BenchDtype dtype);
[[nodiscard]] std::string to_string(const HeadCounts& heads);
[[nodiscard]] BenchDtype bench_dtype_from_string(std::string_view word);

// The command line's and the JSON's words.
template <typename Values>
[[nodiscard]] std::vector<std::string> words_of(const Values& values) {
  std::vector<std::string> words;
  for (const auto& value : values) words.emplace_back(to_string(value));
  return words;
}

// Keys are KernelSweep's fields, values the command line's words; an absent key keeps its default.
// Throws kUsage for an unknown word and nlohmann's own exceptions for an ill-typed value.
void from_json(const nlohmann::json& json, KernelSweep& sweep);

}  // namespace hedgerow::measure
