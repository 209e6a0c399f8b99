#include "kernels/ops/attention_arguments.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>

namespace hedgerow::kernels::ops {
namespace {

using NamedMap = std::pair<std::string_view, FeatureMapKind>;
using NamedWindow = std::pair<std::string_view, WindowLayout>;

constexpr std::array kMaps = {NamedMap{"hedgehog_softmax", FeatureMapKind::kHedgehogSoftmax},
                              NamedMap{"hedgehog_exp", FeatureMapKind::kHedgehogExp},
                              NamedMap{"t2r", FeatureMapKind::kT2R},
                              NamedMap{"elu_plus_one", FeatureMapKind::kEluPlusOne},
                              NamedMap{"relu", FeatureMapKind::kRelu},
                              NamedMap{"identity", FeatureMapKind::kIdentity},
                              NamedMap{"positive_random", FeatureMapKind::kPositiveRandom},
                              NamedMap{"taylor", FeatureMapKind::kTaylor}};
constexpr std::array kWindows = {NamedWindow{"none", WindowLayout::kNone},
                                 NamedWindow{"sliding", WindowLayout::kSliding},
                                 NamedWindow{"terraced", WindowLayout::kTerraced}};

template <class Named>
auto value_of(const char* argument, std::string_view name, const Named& known) {
  const auto found = std::find_if(
      known.begin(), known.end(), [&](const auto& each) { return each.first == name; });
  if (found == known.end()) {
    std::string names;
    for (const auto& each : known) {
      names += (names.empty() ? "" : ", ") + std::string(each.first);
    }
    TORCH_CHECK(false, "attention: ", argument, " must be one of ", names, ", found '", name, "'");
  }
  return found->second;
}

at::Tensor or_undefined(const std::optional<at::Tensor>& x) { return x.value_or(at::Tensor()); }

}  // namespace

FeatureMapOptions feature_map_options(std::string_view feature_map,
                                      bool negation,
                                      std::int64_t order) {
  return {
      .kind = value_of("feature_map", feature_map, kMaps), .negation = negation, .order = order};
}

HybridParameters AttentionArguments::parameters() const {
  return {.q = {or_undefined(layer_q), or_undefined(bias_q)},
          .k = {or_undefined(layer_k), or_undefined(bias_k)},
          .window_factors = or_undefined(window_factors)};
}

HybridOptions AttentionArguments::options() const {
  return {.feature_map = feature_map_options(feature_map, negation, order),
          .layout = value_of("window", window, kWindows),
          .window_size = window_size};
}

}  // namespace hedgerow::kernels::ops
