// Every feature map once: its word in recipes, exports and operators, and what the rest of the code
// asks of it. Recipe, plan, kernels and operators read the row; an export's Python has the rows as
// deploy/huggingface/modeling/feature_map_rows_hedgerow.py, which a test writes from here
// (tests/storage/model/python_rows_test.cpp). phi(z) itself is in kernels/maps. No LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hedgerow::kernels {

enum class FeatureMapKind {
  kHedgehogSoftmax,
  kHedgehogExp,
  kT2R,
  kEluPlusOne,
  kRelu,
  kIdentity,
  kPositiveRandom,
  kTaylor,
  kExp,
  kProjectedEluPlusOne
};

struct FeatureMapRow {
  FeatureMapKind value;
  std::string_view word;
  FeatureMapKind activation;   // the map whose phi(z) this one's is, in kernels/maps
  bool projection = false;     // z = x W + b with learned weights; else z = x, and F follows from D
  bool negation = false;       // may have the map of -z beside that of z: F = 2 f
  bool temperature = false;    // phi(z) knows FeatureMapOptions::temperature
  bool clamped = true;         // from below, by kFeatureClamp
  bool positive = true;        // phi_q.phi_k > 0, which the denominator of any student needs
  bool fp32_products = false;  // sums of its features cancel: the CPU's products stay in fp32
  // The two maps of exponential_maps.hpp, whose features are no function of one z at a time.
  bool one_draw = false;  // W is Omega, drawn once for both sides, without a bias
  bool series = false;    // the monomials of degree <= 2: F = 1 + f + f (f + 1) / 2

  // An activation of z, which the fused kernels take; else ATen operations compute it.
  [[nodiscard]] constexpr bool is_activation() const { return !one_draw && !series; }
  [[nodiscard]] constexpr bool takes_bias() const { return projection && !one_draw; }
};

// In the order of the enumerators.
inline constexpr std::array<FeatureMapRow, 10> kFeatureMaps{{
    {.value = FeatureMapKind::kHedgehogSoftmax,
     .word = "hedgehog_softmax",
     .activation = FeatureMapKind::kHedgehogSoftmax,
     .projection = true,
     .negation = true},
    {.value = FeatureMapKind::kHedgehogExp,
     .word = "hedgehog_exp",
     .activation = FeatureMapKind::kHedgehogExp,
     .projection = true,
     .negation = true},
    {.value = FeatureMapKind::kT2R,
     .word = "t2r",
     .activation = FeatureMapKind::kRelu,
     .projection = true},
    {.value = FeatureMapKind::kEluPlusOne,
     .word = "elu_plus_one",
     .activation = FeatureMapKind::kEluPlusOne,
     .fp32_products = true},
    {.value = FeatureMapKind::kRelu, .word = "relu", .activation = FeatureMapKind::kRelu},
    {.value = FeatureMapKind::kIdentity,
     .word = "identity",
     .activation = FeatureMapKind::kIdentity,
     .clamped = false,
     .positive = false},
    {.value = FeatureMapKind::kPositiveRandom,
     .word = "positive_random",
     .activation = FeatureMapKind::kPositiveRandom,
     .projection = true,
     .clamped = false,
     .one_draw = true},
    {.value = FeatureMapKind::kTaylor,
     .word = "taylor",
     .activation = FeatureMapKind::kTaylor,
     .clamped = false,
     .fp32_products = true,
     .series = true},
    {.value = FeatureMapKind::kExp,
     .word = "exp",
     .activation = FeatureMapKind::kExp,
     .temperature = true,
     .fp32_products = true},
    {.value = FeatureMapKind::kProjectedEluPlusOne,
     .word = "projected_elu_plus_one",
     .activation = FeatureMapKind::kEluPlusOne,
     .projection = true,
     .fp32_products = true},
}};

// Throws std::out_of_range for a value that is none of the enum's.
[[nodiscard]] constexpr const FeatureMapRow& row_of(FeatureMapKind kind) {
  return kFeatureMaps.at(static_cast<std::size_t>(kind));
}

namespace detail {
constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < kFeatureMaps.size(); ++i) {
    if (static_cast<std::size_t>(kFeatureMaps[i].value) != i) return false;
  }
  return true;
}
}  // namespace detail
static_assert(detail::rows_are_in_order(), "row_of finds a row by its enumerator");

// Monomials of degree <= 2 in so many variables, kTaylor's features.
[[nodiscard]] constexpr std::int64_t num_monomials(std::int64_t variables) {
  return 1 + variables + variables * (variables + 1) / 2;
}

}  // namespace hedgerow::kernels
