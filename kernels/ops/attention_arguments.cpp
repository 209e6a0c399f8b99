#include "kernels/ops/attention_arguments.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>

namespace hedgerow::kernels::ops {
namespace {

template <class Named>
auto value_of(const char* argument, std::string_view name, const Named& known) {
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& each) { return each.word == name; });
  if (found == known.end()) {
    std::string names;
    for (const auto& each : known) {
      names += (names.empty() ? "" : ", ") + std::string(each.word);
    }
    TORCH_CHECK(false, "attention: ", argument, " must be one of ", names, ", found '", name, "'");
  }
  return found->value;
}

at::Tensor or_undefined(const std::optional<at::Tensor>& x) { return x.value_or(at::Tensor()); }

}  // namespace

FeatureMapOptions feature_map_options(std::string_view feature_map,
                                      bool negation,
                                      std::int64_t order,
                                      double temperature) {
  return {.kind = value_of("feature_map", feature_map, kFeatureMaps),
          .negation = negation,
          .order = order,
          .temperature = temperature};
}

HybridParameters AttentionArguments::parameters() const {
  return {.q = {or_undefined(layer_q), or_undefined(bias_q)},
          .k = {or_undefined(layer_k), or_undefined(bias_k)},
          .window_factors = or_undefined(window_factors)};
}

HybridOptions AttentionArguments::options() const {
  return {.feature_map = feature_map_options(feature_map, negation, order, temperature),
          .layout = value_of("window", window, kWindowLayouts),
          .window_size = window_size,
          .num_sinks = num_sinks,
          .recall_cache = recall_cache,
          .linear_cap = linear_cap};
}

}  // namespace hedgerow::kernels::ops
