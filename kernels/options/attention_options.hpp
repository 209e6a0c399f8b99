// What attention is to be computed, as plain values: the enums, their spellings in recipes, exports
// and operators, the options of an entry, and their one list with key, range and rules. The maps'
// rows are in feature_maps.hpp. Without LibTorch, so that the recipe (storage), device code and the
// operators for PyTorch share it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/options/feature_maps.hpp"

namespace hedgerow::kernels {

enum class FeatureMapStart { kKaiming, kIdentity, kOrthogonal, kGaussian, kOrthogonalChi };
// Sliding: the last W keys; terraced: the own chunk of W tokens and the whole previous one, borders
// anchored at token 0; none: linear attention alone.
enum class WindowLayout : int { kNone, kSliding, kTerraced };

template <typename Enum>
struct Spelling {
  Enum value;
  std::string_view word;
};

inline constexpr std::array<Spelling<FeatureMapStart>, 5> kFeatureMapStarts{{
    {FeatureMapStart::kKaiming, "kaiming"},
    {FeatureMapStart::kIdentity, "identity"},
    {FeatureMapStart::kOrthogonal, "orthogonal"},
    {FeatureMapStart::kGaussian, "gaussian"},
    {FeatureMapStart::kOrthogonalChi, "orthogonal_chi"},
}};
inline constexpr std::array<Spelling<WindowLayout>, 3> kWindowLayouts{{
    {WindowLayout::kNone, "none"},
    {WindowLayout::kSliding, "sliding"},
    {WindowLayout::kTerraced, "terraced"},
}};

// Empty for a value that is none of the enum's.
template <typename Spellings, typename Enum>
[[nodiscard]] constexpr std::string_view word_of(const Spellings& spellings, Enum value) {
  for (const auto& known : spellings) {
    if (known.value == value) return known.word;
  }
  return {};
}
[[nodiscard]] constexpr std::string_view to_string(FeatureMapKind kind) {
  return word_of(kFeatureMaps, kind);
}
[[nodiscard]] constexpr std::string_view to_string(FeatureMapStart start) {
  return word_of(kFeatureMapStarts, start);
}
[[nodiscard]] constexpr std::string_view to_string(WindowLayout layout) {
  return word_of(kWindowLayouts, layout);
}

// Whose features are wanted. Only positive random features differ: a query's scale cancels in the
// linear branch, so its largest feature is brought to 1 / sqrt(f) (and, as with the exp maps, that
// shift is part of the hybrid and is differentiated); a key's does not cancel and stays.
enum class FeatureMapRole { kQuery, kKey };

// The members of these two structs are the recipe's keys of the same names ([attention]), those of
// an export's config.json and the arguments of the operators; their rules are in visit_options.
struct FeatureMapOptions {
  FeatureMapKind feature_map = FeatureMapKind::kHedgehogSoftmax;
  bool negation = true;      // concatenate the map of -xW (Hedgehog eq. 5): F = 2 f
  double temperature = 1.0;  // t of exp(t x): larger ones are spikier, nearer to fp32's limit

  [[nodiscard]] constexpr const FeatureMapRow& row() const { return row_of(feature_map); }
  bool operator==(const FeatureMapOptions&) const = default;
};

struct HybridOptions : FeatureMapOptions {
  // kNone: pure linear attention, y = sum l v / (sum l + 1e-12)
  WindowLayout window = WindowLayout::kTerraced;
  std::int64_t window_size = 64;
  // The first tokens of a sequence, which every later query sees in its window and no linear sum
  // holds (StreamingLLM, arXiv 2309.17453).
  std::int64_t num_sinks = 0;
  // Keys a kv head that stay exact although they left the window, those that the state recalls
  // worst (kernels/problem/recall_cache.hpp). Training does not know it.
  std::int64_t recall_cache = 0;
  // The linear branch counts for as many keys as this at most (window_gain in
  // kernels/problem/hybrid_parameters.hpp), so that a student holds beyond the length that it
  // learned at; 0: for as many as it has.
  std::int64_t linear_cap = 0;

  // Of a call, and in no file: y in fp32 instead of q's dtype (the transfer loss wants it
  // unrounded).
  bool fp32_output = false;

  // Another map in place of this one.
  constexpr void set_map(const FeatureMapOptions& map) {
    static_cast<FeatureMapOptions&>(*this) = map;
  }
  // What the losses compute with: the same without the recall cache.
  [[nodiscard]] constexpr HybridOptions in_training() const {
    HybridOptions without = *this;
    without.recall_cache = 0;
    return without;
  }
  [[nodiscard]] constexpr bool caps_linear() const { return linear_cap > 0; }
  [[nodiscard]] constexpr bool windowed() const { return window != WindowLayout::kNone; }
  bool operator==(const HybridOptions&) const = default;
};

// What is known of an option beside its name, type and default (the member's of HybridOptions).
struct OptionRules {
  std::string_view comment;  // in a written recipe
  double min = 0, max = 0;   // the range of a number; equal: no range
  bool above_min = false;    // the minimum itself is not allowed
  // The option must be 0 without a window, for the reason given here; empty: it need not.
  std::string_view without_window{};
  bool within_window = false;  // at most window_size
  double student_max = 0;      // of a student, where the kernels take more; 0: max
  // Files and operators of earlier builds lack the option, and mean its default.
  bool later = false;
};

// The list of the options: visitor(key, value, rules) for each, in the order of a recipe. Recipe,
// hedgerow.json, operators and why_not walk it, and the rows of an export's Python are
// written from it (tests/storage/model/python_rows_test.cpp).
template <typename Options, typename Visitor>
constexpr void visit_options(Options& options, const Visitor& visitor) {
  visitor("feature_map", options.feature_map, OptionRules{});  // its comment is feature_map_words()
  visitor("negation", options.negation, OptionRules{"also map -xW (the hedgehog maps)"});
  visitor(
      "temperature",
      options.temperature,
      OptionRules{.comment = "t of exp's exp(t x)", .max = 16, .above_min = true, .later = true});
  visitor("window", options.window, OptionRules{"terraced, sliding or none"});
  visitor("window_size",
          options.window_size,
          OptionRules{"keys under softmax; terraced sees up to twice as many", 1, 65536});
  visitor("num_sinks",
          options.num_sinks,
          OptionRules{.comment = "first tokens that stay under softmax; 0 for none",
                      .max = 65536,
                      .without_window = "sinks belong to a window",
                      .within_window = true,
                      .student_max = 16,
                      .later = true});
  visitor(
      "recall_cache",
      options.recall_cache,
      OptionRules{
          .comment =
              "keys a kv head that left the window and stay exact; the state recalls them worst",
          .max = 65536,
          .without_window = "the cache holds keys that left a window",
          .within_window = true,
          .later = true});
  visitor("linear_cap",
          options.linear_cap,
          OptionRules{
              .comment = "keys that the linear branch counts for at most; 0 for all that it has",
              .max = 1 << 20,
              .without_window = "the cap weighs the linear branch against a window",
              .later = true});
}

// What is wrong with the options, as "num_sinks = 9: more than attention.window_size = 8; use ..";
// empty: nothing. It needs no tensor.
[[nodiscard]] std::string why_not(const HybridOptions& options);

}  // namespace hedgerow::kernels
