// What attention is to be computed, as plain values: the enums, their spellings in recipes, exports
// and operators, and the options of an entry. The one definition of each (the maps' is in
// feature_maps.hpp); without LibTorch, so that the recipe (storage), device code and the operators
// for PyTorch share it.
#pragma once

#include <array>
#include <cstdint>
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

struct FeatureMapOptions {
  FeatureMapKind kind = FeatureMapKind::kHedgehogSoftmax;
  bool negation = true;    // F = 2 f; of a map that has it (FeatureMapRow::negation)
  std::int64_t order = 2;  // kTaylor only, 1 to 3: F = C(f + order, order). Odd orders can be < 0.
  double temperature = 1.0;  // t, of a map that has it (FeatureMapRow::temperature)
};

struct HybridOptions {
  FeatureMapOptions feature_map;
  // kNone: pure linear attention, y = sum l v / (sum l + 1e-12)
  WindowLayout layout = WindowLayout::kTerraced;
  std::int64_t window_size = 64;
  // The first tokens of a sequence, which every later query sees in its window and no linear sum
  // holds (StreamingLLM, arXiv 2309.17453); at most window_size, 0 without a window.
  std::int64_t num_sinks = 0;
  // Keys a kv head that stay exact although they left the window, those that the state recalls
  // worst (kernels/problem/recall_cache.hpp); at most window_size, 0 without a window.
  std::int64_t recall_cache = 0;
  // The linear branch counts for as many keys as this at most (window_gain in
  // kernels/problem/hybrid_parameters.hpp); 0: for as many as it has, and without a window.
  std::int64_t linear_cap = 0;
  // y in fp32 instead of q's dtype (the transfer loss wants it unrounded)
  bool fp32_output = false;
};

}  // namespace hedgerow::kernels
