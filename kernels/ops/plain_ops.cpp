// hedgerow::softmax_attention, linear_attention, feature_map and transfer_mse, and their backwards:
// operators without the hybrid's tail of arguments.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "kernels/checks.hpp"
#include "kernels/linear_attention.hpp"
#include "kernels/ops/shapes.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/softmax_attention_aten.hpp"
#include "kernels/transfer_loss.hpp"
#include "kernels/transfer_loss_aten.hpp"
#include "kernels/transfer_loss_cpu.hpp"

namespace hedgerow::kernels::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// The operator that `kernel` is registered as.
template <auto kernel>
const auto& op(const char* name) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow(name, "")
                                 .typed<std::remove_pointer_t<decltype(kernel)>>();
  return handle;
}

// The gradients of what `function` makes of leaves, by a graph of its own; absent where a leaf is.
template <class Function>
Three gradients_of(const std::array<Tensor, 3>& inputs, const Tensor& dy, Function function) {
  const RecordingGuard recording;
  const at::AutoGradMode grad_mode(true);
  std::array<Tensor, 3> leaves, gradients;
  variable_list given;
  for (std::size_t i = 0; i < 3; ++i) {
    if (inputs[i].defined()) {
      leaves[i] = inputs[i].detach().set_requires_grad(true);
      given.push_back(leaves[i]);
    }
  }
  const variable_list found = torch::autograd::grad({function(leaves)}, given, {dy});
  std::size_t next = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    gradients[i] = leaves[i].defined() ? found[next++].contiguous() : absent(dy);
  }
  return {gradients[0], gradients[1], gradients[2]};
}

Three contiguous_like(const Tensor& a, const Tensor& b, const Tensor& c) {
  const auto like = [](const Tensor& x) { return empty_of(x, x.sym_sizes(), x.scalar_type()); };
  return {like(a), like(b), like(c)};
}

// ---- the teacher

Tensor teach(const Tensor& q, const Tensor& k, const Tensor& v) {
  return in_rows(softmax_attention(q, k, v));
}

Tensor teach_shape(const Tensor& q, const Tensor& k, const Tensor& v) {
  if (sizes_are_known({q, k, v})) check_attention(q, k, v);
  return empty_in_rows(q, q.scalar_type());
}

Three teach_backward(const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v) {
  const aten::SoftmaxGradients g = aten::softmax_backward_aten(q, k, v, dy);
  return {g.q.contiguous(), g.k.contiguous(), g.v.contiguous()};
}

Three teach_backward_shape(const Tensor& /*dy*/,
                           const Tensor& q,
                           const Tensor& k,
                           const Tensor& v) {
  return contiguous_like(q, k, v);
}

class SoftmaxFunction : public torch::autograd::Function<SoftmaxFunction> {
 public:
  static Tensor forward(AutogradContext* context,
                        const Tensor& q,
                        const Tensor& k,
                        const Tensor& v) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({q, k, v});
    return op<&teach>("hedgerow::softmax_attention").call(q, k, v);
  }
  static variable_list backward(AutogradContext* context, const variable_list& dy) {
    const variable_list saved = context->get_saved_variables();
    const auto [dq, dk, dv] = op<&teach_backward>("hedgerow::softmax_attention_backward")
                                  .call(dy[0], saved[0], saved[1], saved[2]);
    return {dq, dk, dv};
  }
};

Tensor teach_autograd(const Tensor& q, const Tensor& k, const Tensor& v) {
  return SoftmaxFunction::apply(q, k, v);
}

// ---- linear attention

Tensor attend_linearly(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, bool causal) {
  return (causal ? causal_linear_attention(phi_q, phi_k, v)
                 : bidirectional_linear_attention(phi_q, phi_k, v))
      .contiguous();
}

Tensor attend_linearly_shape(const Tensor& /*phi_q*/,
                             const Tensor& /*phi_k*/,
                             const Tensor& v,
                             bool /*causal*/) {
  return empty_of(v, v.sym_sizes(), v.scalar_type());
}

Three attend_linearly_backward(
    const Tensor& dy, const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, bool causal) {
  return gradients_of({phi_q, phi_k, v}, dy, [&](const std::array<Tensor, 3>& x) {
    return attend_linearly(x[0], x[1], x[2], causal);
  });
}

Three attend_linearly_backward_shape(const Tensor& /*dy*/,
                                     const Tensor& phi_q,
                                     const Tensor& phi_k,
                                     const Tensor& v,
                                     bool /*causal*/) {
  return contiguous_like(phi_q, phi_k, v);
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static Tensor forward(AutogradContext* context,
                        const Tensor& phi_q,
                        const Tensor& phi_k,
                        const Tensor& v,
                        bool causal) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({phi_q, phi_k, v});
    context->saved_data["causal"] = causal;
    return op<&attend_linearly>("hedgerow::linear_attention").call(phi_q, phi_k, v, causal);
  }
  static variable_list backward(AutogradContext* context, const variable_list& dy) {
    const variable_list saved = context->get_saved_variables();
    const auto [dphi_q, dphi_k, dv] =
        op<&attend_linearly_backward>("hedgerow::linear_attention_backward")
            .call(dy[0], saved[0], saved[1], saved[2], context->saved_data["causal"].toBool());
    return {dphi_q, dphi_k, dv, Tensor()};
  }
};

Tensor attend_linearly_autograd(const Tensor& phi_q,
                                const Tensor& phi_k,
                                const Tensor& v,
                                bool causal) {
  return LinearFunction::apply(phi_q, phi_k, v, causal);
}

// ---- feature maps

// The function of one map and all that it is given but the three tensors.
struct Map {
  std::string feature_map;
  bool negation;
  std::int64_t order;
  std::int64_t num_heads;
  bool of_queries;

  [[nodiscard]] FeatureMapOptions options() const {
    return feature_map_options(feature_map, negation, order);
  }
};

Tensor map_features(const Tensor& x,
                    const std::optional<Tensor>& layer,
                    const std::optional<Tensor>& bias,
                    std::int64_t num_heads,
                    bool of_queries,
                    std::string_view feature_map,
                    bool negation,
                    std::int64_t order) {
  return apply_feature_map(x,
                           {layer.value_or(Tensor()), bias.value_or(Tensor())},
                           feature_map_options(feature_map, negation, order),
                           num_heads,
                           of_queries ? FeatureMapRole::kQuery : FeatureMapRole::kKey)
      .contiguous();
}

Tensor map_features_shape(const Tensor& x,
                          const std::optional<Tensor>& layer,
                          const std::optional<Tensor>& /*bias*/,
                          std::int64_t num_heads,
                          bool /*of_queries*/,
                          std::string_view feature_map,
                          bool negation,
                          std::int64_t order) {
  const FeatureMapOptions options = feature_map_options(feature_map, negation, order);
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
                            std::int64_t order) {
  const auto given = [](const Tensor& leaf) {
    return leaf.defined() ? std::optional<Tensor>(leaf) : std::nullopt;
  };
  return gradients_of({x, layer.value_or(Tensor()), bias.value_or(Tensor())},
                      dphi,
                      [&](const std::array<Tensor, 3>& leaves) {
                        return map_features(leaves[0],
                                            given(leaves[1]),
                                            given(leaves[2]),
                                            num_heads,
                                            of_queries,
                                            feature_map,
                                            negation,
                                            order);
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
                                  std::int64_t /*order*/) {
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
    context->saved_data["num_heads"] = map.num_heads;
    context->saved_data["of_queries"] = map.of_queries;
    return op<&map_features>("hedgerow::feature_map")
        .call(x,
              layer,
              bias,
              map.num_heads,
              map.of_queries,
              map.feature_map,
              map.negation,
              map.order);
  }
  static variable_list backward(AutogradContext* context, const variable_list& dphi) {
    const variable_list saved = context->get_saved_variables();
    const auto given = [&](std::size_t i) {
      return saved[i].defined() ? std::optional<Tensor>(saved[i]) : std::nullopt;
    };
    const auto [dx, dlayer, dbias] = op<&map_features_backward>("hedgerow::feature_map_backward")
                                         .call(dphi[0],
                                               saved[0],
                                               given(1),
                                               given(2),
                                               context->saved_data["num_heads"].toInt(),
                                               context->saved_data["of_queries"].toBool(),
                                               context->saved_data["feature_map"].toStringRef(),
                                               context->saved_data["negation"].toBool(),
                                               context->saved_data["order"].toInt());
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
                             std::int64_t order) {
  return FeatureMapFunction::apply(
      x, layer, bias, Map{std::string(feature_map), negation, order, num_heads, of_queries});
}

// ---- the outputs' loss

Tensor mean_square(const Tensor& y_pred, const Tensor& y_true) {
  const c10::NoGradGuard no_grad;
  return transfer_mse(y_pred, y_true);
}

Tensor mean_square_shape(const Tensor& y_pred, const Tensor& /*y_true*/) {
  return empty_of(y_pred, {}, y_pred.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// In y_pred's memory layout, as what comes before it in the backward will read it.
Tensor mean_square_backward(const Tensor& dloss, const Tensor& y_pred, const Tensor& y_true) {
  const Tensor gradient = y_pred.is_cpu() && y_pred.scalar_type() != at::kDouble
                              ? cpu::mean_square_gradient_cpu(y_pred, y_true, dloss.item<double>())
                              : aten::mean_square_gradient_aten(y_pred, y_true, dloss);
  Tensor out = at::empty_like(y_pred);
  return out.strides() == gradient.strides() ? gradient : out.copy_(gradient);
}

Tensor mean_square_backward_shape(const Tensor& /*dloss*/,
                                  const Tensor& y_pred,
                                  const Tensor& /*y_true*/) {
  return at::empty_like(y_pred);
}

class MeanSquareFunction : public torch::autograd::Function<MeanSquareFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& y_pred, const Tensor& y_true) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({y_pred, y_true});
    return op<&mean_square>("hedgerow::transfer_mse").call(y_pred, y_true);
  }
  static variable_list backward(AutogradContext* context, const variable_list& dloss) {
    const variable_list saved = context->get_saved_variables();
    return {op<&mean_square_backward>("hedgerow::transfer_mse_backward")
                .call(dloss[0], saved[0], saved[1]),
            Tensor()};
  }
};

Tensor mean_square_autograd(const Tensor& y_pred, const Tensor& y_true) {
  return MeanSquareFunction::apply(y_pred, y_true.detach());
}

#define HEDGEROW_MAP_SCHEMA                                                        \
  "Tensor? layer=None, Tensor? bias=None, *, int num_heads, bool of_queries, str " \
  "feature_map=\"hedgehog_softmax\", bool negation=True, int order=2"

TORCH_LIBRARY_FRAGMENT(hedgerow, library) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  library.def("softmax_attention(Tensor q, Tensor k, Tensor v) -> Tensor", tags);
  library.def(
      "softmax_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v) -> (Tensor dq, Tensor "
      "dk, Tensor dv)",
      tags);
  library.def(
      "linear_attention(Tensor phi_q, Tensor phi_k, Tensor v, *, bool causal=True) -> Tensor",
      tags);
  library.def(
      "linear_attention_backward(Tensor dy, Tensor phi_q, Tensor phi_k, Tensor v, *, bool causal) "
      "-> (Tensor dphi_q, Tensor dphi_k, Tensor dv)",
      tags);
  library.def("feature_map(Tensor x, " HEDGEROW_MAP_SCHEMA ") -> Tensor", tags);
  library.def("feature_map_backward(Tensor dphi, Tensor x, " HEDGEROW_MAP_SCHEMA
              ") -> (Tensor dx, Tensor dlayer, Tensor dbias)",
              tags);
  library.def("transfer_mse(Tensor y_pred, Tensor y_true) -> Tensor", tags);
  library.def("transfer_mse_backward(Tensor dloss, Tensor y_pred, Tensor y_true) -> Tensor", tags);
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("softmax_attention", TORCH_FN(teach));
  library.impl("softmax_attention_backward", TORCH_FN(teach_backward));
  library.impl("linear_attention", TORCH_FN(attend_linearly));
  library.impl("linear_attention_backward", TORCH_FN(attend_linearly_backward));
  library.impl("feature_map", TORCH_FN(map_features));
  library.impl("feature_map_backward", TORCH_FN(map_features_backward));
  library.impl("transfer_mse", TORCH_FN(mean_square));
  library.impl("transfer_mse_backward", TORCH_FN(mean_square_backward));
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("softmax_attention", TORCH_FN(teach_shape));
  library.impl("softmax_attention_backward", TORCH_FN(teach_backward_shape));
  library.impl("linear_attention", TORCH_FN(attend_linearly_shape));
  library.impl("linear_attention_backward", TORCH_FN(attend_linearly_backward_shape));
  library.impl("feature_map", TORCH_FN(map_features_shape));
  library.impl("feature_map_backward", TORCH_FN(map_features_backward_shape));
  library.impl("transfer_mse", TORCH_FN(mean_square_shape));
  library.impl("transfer_mse_backward", TORCH_FN(mean_square_backward_shape));
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("softmax_attention", TORCH_FN(teach_autograd));
  library.impl("linear_attention", TORCH_FN(attend_linearly_autograd));
  library.impl("feature_map", TORCH_FN(map_features_autograd));
  library.impl("transfer_mse", TORCH_FN(mean_square_autograd));
  for (const char* name : {"softmax_attention_backward",
                           "linear_attention_backward",
                           "feature_map_backward",
                           "transfer_mse_backward"}) {
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace
}  // namespace hedgerow::kernels::ops
