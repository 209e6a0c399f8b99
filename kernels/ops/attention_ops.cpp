// hedgerow::softmax_attention and linear_attention, and their backwards.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "kernels/aten/softmax_attention_aten.hpp"
#include "kernels/linear_attention.hpp"
#include "kernels/ops/own_graph.hpp"
#include "kernels/ops/shapes.hpp"
#include "kernels/problem/checks.hpp"
#include "kernels/softmax_attention.hpp"

namespace hedgerow::kernels::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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
    return operator_of<&teach>("hedgerow::softmax_attention").call(q, k, v);
  }
  static variable_list backward(AutogradContext* context, const variable_list& dy) {
    const variable_list saved = context->get_saved_variables();
    const auto [dq, dk, dv] = operator_of<&teach_backward>("hedgerow::softmax_attention_backward")
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

Tensor attend_linearly_shape(const Tensor& phi_q,
                             const Tensor& phi_k,
                             const Tensor& v,
                             bool /*causal*/) {
  if (sizes_are_known({phi_q, phi_k, v})) check_linear_attention(phi_q, phi_k, v);
  return empty_of(v, v.sym_sizes(), v.scalar_type());
}

Three attend_linearly_backward(
    const Tensor& dy, const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, bool causal) {
  return gradients_of({phi_q, phi_k, v}, dy, [&](const ThreeLeaves& x) {
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
    return operator_of<&attend_linearly>("hedgerow::linear_attention")
        .call(phi_q, phi_k, v, causal);
  }
  static variable_list backward(AutogradContext* context, const variable_list& dy) {
    const variable_list saved = context->get_saved_variables();
    const auto [dphi_q, dphi_k, dv] =
        operator_of<&attend_linearly_backward>("hedgerow::linear_attention_backward")
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
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("softmax_attention", TORCH_FN(teach));
  library.impl("softmax_attention_backward", TORCH_FN(teach_backward));
  library.impl("linear_attention", TORCH_FN(attend_linearly));
  library.impl("linear_attention_backward", TORCH_FN(attend_linearly_backward));
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("softmax_attention", TORCH_FN(teach_shape));
  library.impl("softmax_attention_backward", TORCH_FN(teach_backward_shape));
  library.impl("linear_attention", TORCH_FN(attend_linearly_shape));
  library.impl("linear_attention_backward", TORCH_FN(attend_linearly_backward_shape));
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("softmax_attention", TORCH_FN(teach_autograd));
  library.impl("linear_attention", TORCH_FN(attend_linearly_autograd));
  library.impl("softmax_attention_backward", torch::autograd::autogradNotImplementedFallback());
  library.impl("linear_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace hedgerow::kernels::ops
