// hedgerow::feature_map and its backward.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "kernels/ops/own_graph.hpp"
#include "kernels/ops/shapes.hpp"
#include "kernels/problem/checks.hpp"
#include "kernels/problem/feature_map.hpp"

namespace hedgerow::kernels::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The function of one map and all that it is given but the three tensors.
struct Map {
  std::string feature_map;
  bool negation;
  std::int64_t order;
  double temperature;
  std::int64_t num_heads;
  bool of_queries;

  [[nodiscard]] FeatureMapOptions options() const {
    return feature_map_options(feature_map, negation, order, temperature);
  }
};

Tensor map_features(const Tensor& x,
                    const std::optional<Tensor>& layer,
                    const std::optional<Tensor>& bias,
                    std::int64_t num_heads,
                    bool of_queries,
                    std::string_view feature_map,
                    bool negation,
                    std::int64_t order,
                    double temperature) {
  return apply_feature_map(x,
                           {layer.value_or(Tensor()), bias.value_or(Tensor())},
                           feature_map_options(feature_map, negation, order, temperature),
                           num_heads,
                           of_queries ? FeatureMapRole::kQuery : FeatureMapRole::kKey)
      .contiguous();
}

Tensor map_features_shape(const Tensor& x,
                          const std::optional<Tensor>& layer,
                          const std::optional<Tensor>& bias,
                          std::int64_t num_heads,
                          bool /*of_queries*/,
                          std::string_view feature_map,
                          bool negation,
                          std::int64_t order,
                          double temperature) {
  const FeatureMapOptions options = feature_map_options(feature_map, negation, order, temperature);
  const FeatureMapWeights weights{layer.value_or(Tensor()), bias.value_or(Tensor())};
  if (sizes_are_known({x, weights.layer, weights.bias}))
    check_feature_map(x, weights, options, num_heads);
  return empty_of(
      x,
      {x.sym_size(0), num_heads, x.sym_size(2), num_features(layer, options, x.sym_size(3))},
      x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

Three map_features_backward(const Tensor& dphi,
                            const Tensor& x,
                            const std::optional<Tensor>& layer,
                            const std::optional<Tensor>& bias,
                            std::int64_t num_heads,
                            bool of_queries,
                            std::string_view feature_map,
                            bool negation,
                            std::int64_t order,
                            double temperature) {
  const auto given = [](const Tensor& leaf) {
    return leaf.defined() ? std::optional<Tensor>(leaf) : std::nullopt;
  };
  return gradients_of(
      {x, layer.value_or(Tensor()), bias.value_or(Tensor())}, dphi, [&](const ThreeLeaves& leaves) {
        return map_features(leaves[0],
                            given(leaves[1]),
                            given(leaves[2]),
                            num_heads,
                            of_queries,
                            feature_map,
                            negation,
                            order,
                            temperature);
      });
}

Three map_features_backward_shape(const Tensor& /*dphi*/,
                                  const Tensor& x,
                                  const std::optional<Tensor>& layer,
                                  const std::optional<Tensor>& bias,
                                  std::int64_t /*num_heads*/,
                                  bool /*of_queries*/,
                                  std::string_view /*feature_map*/,
                                  bool /*negation*/,
                                  std::int64_t /*order*/,
                                  double /*temperature*/) {
  const auto like = [&](const std::optional<Tensor>& given) {
    return given.has_value() ? empty_of(*given, given->sym_sizes(), given->scalar_type())
                             : absent(x);
  };
  return {like(x), like(layer), like(bias)};
}

class FeatureMapFunction : public torch::autograd::Function<FeatureMapFunction> {
 public:
  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const std::optional<Tensor>& layer,
                        const std::optional<Tensor>& bias,
                        const Map& map) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, layer.value_or(Tensor()), bias.value_or(Tensor())});
    context->saved_data["feature_map"] = map.feature_map;
    context->saved_data["negation"] = map.negation;
    context->saved_data["order"] = map.order;
    context->saved_data["temperature"] = map.temperature;
    context->saved_data["num_heads"] = map.num_heads;
    context->saved_data["of_queries"] = map.of_queries;
    return operator_of<&map_features>("hedgerow::feature_map")
        .call(x,
              layer,
              bias,
              map.num_heads,
              map.of_queries,
              map.feature_map,
              map.negation,
              map.order,
              map.temperature);
  }
  static variable_list backward(AutogradContext* context, const variable_list& dphi) {
    const variable_list saved = context->get_saved_variables();
    const auto given = [&](std::size_t i) {
      return saved[i].defined() ? std::optional<Tensor>(saved[i]) : std::nullopt;
    };
    const auto [dx, dlayer, dbias] =
        operator_of<&map_features_backward>("hedgerow::feature_map_backward")
            .call(dphi[0],
                  saved[0],
                  given(1),
                  given(2),
                  context->saved_data["num_heads"].toInt(),
                  context->saved_data["of_queries"].toBool(),
                  context->saved_data["feature_map"].toStringRef(),
                  context->saved_data["negation"].toBool(),
                  context->saved_data["order"].toInt(),
                  context->saved_data["temperature"].toDouble());
    return {dx,
            saved[1].defined() ? dlayer : Tensor(),
            saved[2].defined() ? dbias : Tensor(),
            Tensor()};
  }
};

Tensor map_features_autograd(const Tensor& x,
                             const std::optional<Tensor>& layer,
                             const std::optional<Tensor>& bias,
                             std::int64_t num_heads,
                             bool of_queries,
                             std::string_view feature_map,
                             bool negation,
                             std::int64_t order,
                             double temperature) {
  return FeatureMapFunction::apply(
      x,
      layer,
      bias,
      Map{std::string(feature_map), negation, order, temperature, num_heads, of_queries});
}

#define HEDGEROW_MAP_SCHEMA                                                        \
  "Tensor? layer=None, Tensor? bias=None, *, int num_heads, bool of_queries, str " \
  "feature_map=\"hedgehog_softmax\", bool negation=True, int order=2, float temperature=1.0"

TORCH_LIBRARY_FRAGMENT(hedgerow, library) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  library.def("feature_map(Tensor x, " HEDGEROW_MAP_SCHEMA ") -> Tensor", tags);
  library.def("feature_map_backward(Tensor dphi, Tensor x, " HEDGEROW_MAP_SCHEMA
              ") -> (Tensor dx, Tensor dlayer, Tensor dbias)",
              tags);
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("feature_map", TORCH_FN(map_features));
  library.impl("feature_map_backward", TORCH_FN(map_features_backward));
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("feature_map", TORCH_FN(map_features_shape));
  library.impl("feature_map_backward", TORCH_FN(map_features_backward_shape));
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("feature_map", TORCH_FN(map_features_autograd));
  library.impl("feature_map_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace hedgerow::kernels::ops
