// hedgerow::transfer_mse and its backward.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "kernels/aten/transfer_loss_aten.hpp"
#include "kernels/cpu/transfer_loss_cpu.hpp"
#include "kernels/ops/shapes.hpp"
#include "kernels/problem/checks.hpp"
#include "kernels/transfer_loss.hpp"

namespace hedgerow::kernels::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor mean_square(const Tensor& y_pred, const Tensor& y_true) {
  const c10::NoGradGuard no_grad;
  return transfer_mse(y_pred, y_true);
}

Tensor mean_square_shape(const Tensor& y_pred, const Tensor& y_true) {
  if (sizes_are_known({y_pred, y_true})) check_mean_square(y_pred, y_true);
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
    return operator_of<&mean_square>("hedgerow::transfer_mse").call(y_pred, y_true);
  }
  static variable_list backward(AutogradContext* context, const variable_list& dloss) {
    const variable_list saved = context->get_saved_variables();
    return {operator_of<&mean_square_backward>("hedgerow::transfer_mse_backward")
                .call(dloss[0], saved[0], saved[1]),
            Tensor()};
  }
};

Tensor mean_square_autograd(const Tensor& y_pred, const Tensor& y_true) {
  return MeanSquareFunction::apply(y_pred, y_true.detach());
}

TORCH_LIBRARY_FRAGMENT(hedgerow, library) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  library.def("transfer_mse(Tensor y_pred, Tensor y_true) -> Tensor", tags);
  library.def("transfer_mse_backward(Tensor dloss, Tensor y_pred, Tensor y_true) -> Tensor", tags);
}

TORCH_LIBRARY_IMPL(hedgerow, CompositeExplicitAutograd, library) {
  library.impl("transfer_mse", TORCH_FN(mean_square));
  library.impl("transfer_mse_backward", TORCH_FN(mean_square_backward));
}

TORCH_LIBRARY_IMPL(hedgerow, Meta, library) {
  library.impl("transfer_mse", TORCH_FN(mean_square_shape));
  library.impl("transfer_mse_backward", TORCH_FN(mean_square_backward_shape));
}

TORCH_LIBRARY_IMPL(hedgerow, Autograd, library) {
  library.impl("transfer_mse", TORCH_FN(mean_square_autograd));
  library.impl("transfer_mse_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace hedgerow::kernels::ops
