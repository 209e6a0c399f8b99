// hedgerow::transfer_cross_entropy. The gradients are computed with the value, so the forward that
// keeps them is an operator and the backward is a product with a scalar.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/hybrid_passes.hpp"
#include "kernels/ops/own_graph.hpp"
#include "kernels/ops/shapes.hpp"

namespace hedgerow::kernels::ops {
namespace {

using at::Tensor;
// The loss, and its gradients by both layers, both biases (each layer before its bias) and the
// window factors; absent where there is no such parameter.
using LossAndGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
constexpr std::size_t kNumParameters = 5;

ParameterLoss run(const AttentionArguments& a, const Tensor& q, const Tensor& k, bool gradients) {
  const HybridParameters parameters = a.parameters();
  const HybridOptions options = a.options();
  check_known(a, q, k, {});  // the choice of a backend reads sizes
  return cross_entropy(cross_entropy_backend_for(q, parameters, options),
                       make_hybrid_problem(q, k, {}, parameters, options),
                       gradients);
}

Tensor loss(const AttentionArguments& a, const Tensor& q, const Tensor& k) {
  const c10::NoGradGuard no_grad;
  return run(a, q, k, false).loss;
}

LossAndGradients loss_forward(const AttentionArguments& a, const Tensor& q, const Tensor& k) {
  const RecordingGuard recording;  // the ATen backend's maps walk a graph of their own
  const c10::NoGradGuard no_grad;
  const ParameterLoss result = run(a, q, k, true);
  const auto like = [&](const Tensor& gradient, const std::optional<Tensor>& parameter) {
    if (!parameter.has_value()) return absent(q);
    return gradient.defined() ? like_parameter(gradient, *parameter).contiguous()
                              : at::zeros(parameter->sizes(), parameter->options());
  };
  const HybridGradients& g = result.gradients;
  return {result.loss,
          like(g.map_q.layer, a.layer_q),
          like(g.map_q.bias, a.bias_q),
          like(g.map_k.layer, a.layer_k),
          like(g.map_k.bias, a.bias_k),
          like(g.window_factors, a.window_factors)};
}

Tensor loss_shape(const AttentionArguments& a, const Tensor& q, const Tensor& k) {
  check_known(a, q, k, {});
  return empty_of(q, {}, sum_dtype_of(q));
}

LossAndGradients loss_forward_shape(const AttentionArguments& a, const Tensor& q, const Tensor& k) {
  const auto like = [&](const std::optional<Tensor>& x) {
    return x.has_value() ? empty_of(*x, x->sym_sizes(), x->scalar_type()) : absent(q);
  };
  return {loss_shape(a, q, k),
          like(a.layer_q),
          like(a.bias_q),
          like(a.layer_k),
          like(a.bias_k),
          like(a.window_factors)};
}

class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const std::optional<Tensor>& layer_q,
                        const std::optional<Tensor>& bias_q,
                        const std::optional<Tensor>& layer_k,
                        const std::optional<Tensor>& bias_k,
                        const std::optional<Tensor>& window_factors,
                        const std::pair<Tensor, Tensor>& q_and_k,
                        const AttentionArguments& a) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const LossAndGradients all = AttentionOp<&loss_forward>::dispatch(
        "hedgerow::transfer_cross_entropy_forward", a, q_and_k.first, q_and_k.second);
    const auto kept = [](const std::optional<Tensor>& parameter, const Tensor& gradient) {
      return parameter.has_value() ? gradient : Tensor();
    };
    context->save_for_backward({kept(layer_q, std::get<1>(all)),
                                kept(bias_q, std::get<2>(all)),
                                kept(layer_k, std::get<3>(all)),
                                kept(bias_k, std::get<4>(all)),
                                kept(window_factors, std::get<5>(all))});
    return std::get<0>(all);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dloss) {
    torch::autograd::variable_list gradients;
    for (const Tensor& gradient : context->get_saved_variables()) {
      gradients.push_back(gradient.defined() ? (gradient * dloss[0]).to(gradient.scalar_type())
                                             : gradient);
    }
    gradients.resize(kNumParameters + 2);  // q and k are constants here
    return gradients;
  }
};

Tensor loss_autograd(const AttentionArguments& a, const Tensor& q, const Tensor& k) {
  if (!needs_any(needs_of(a.parameters()))) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return AttentionOp<&loss>::dispatch("hedgerow::transfer_cross_entropy", a, q, k);
  }
  return CrossEntropyFunction::apply(a.layer_q,
                                     a.bias_q,
                                     a.layer_k,
                                     a.bias_k,
                                     a.window_factors,
                                     std::pair(q.detach(), k.detach()),
                                     a);
}

TORCH_LIBRARY_FRAGMENT(hedgerow, library) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  library.def("transfer_cross_entropy(Tensor q, Tensor k, *, " HEDGEROW_ATTENTION_SCHEMA
              ") -> Tensor",
              tags);
  library.def("transfer_cross_entropy_forward(Tensor q, Tensor k, *, " HEDGEROW_ATTENTION_SCHEMA
              ") -> (Tensor loss, Tensor dlayer_q, Tensor dbias_q, Tensor dlayer_k, Tensor "
              "dbias_k, Tensor dwindow_factors)",
              tags);
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("transfer_cross_entropy", TORCH_FN(AttentionOp<&loss>::call));
  library.impl("transfer_cross_entropy_forward", TORCH_FN(AttentionOp<&loss_forward>::call));
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("transfer_cross_entropy", TORCH_FN(AttentionOp<&loss_shape>::call));
  library.impl("transfer_cross_entropy_forward", TORCH_FN(AttentionOp<&loss_forward_shape>::call));
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("transfer_cross_entropy", TORCH_FN(AttentionOp<&loss_autograd>::call));
  library.impl("transfer_cross_entropy_forward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace hedgerow::kernels::ops
