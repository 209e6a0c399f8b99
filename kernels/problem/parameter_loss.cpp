#include "kernels/problem/parameter_loss.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels {
namespace {

class ParameterLossFunction : public torch::autograd::Function<ParameterLossFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& layer_q,
                            const at::Tensor& bias_q,
                            const at::Tensor& layer_k,
                            const at::Tensor& bias_k,
                            const at::Tensor& window_factors,
                            const ParameterLoss& result) {
    const HybridGradients& gradients = result.gradients;
    context->save_for_backward({like_parameter(gradients.map_q.layer, layer_q),
                                like_parameter(gradients.map_q.bias, bias_q),
                                like_parameter(gradients.map_k.layer, layer_k),
                                like_parameter(gradients.map_k.bias, bias_k),
                                like_parameter(gradients.window_factors, window_factors)});
    return result.loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dloss) {
    torch::autograd::variable_list gradients;
    for (const at::Tensor& gradient : context->get_saved_variables()) {
      gradients.push_back(gradient.defined() ? gradient * dloss[0] : gradient);
    }
    gradients.emplace_back();  // none for the result
    return gradients;
  }
};

}  // namespace

HybridNeeds needs_of(const HybridParameters& parameters) {
  return {.map_q = any_requires_grad({parameters.q.layer, parameters.q.bias}),
          .map_k = any_requires_grad({parameters.k.layer, parameters.k.bias}),
          .window_factors = any_requires_grad({parameters.window_factors})};
}

bool needs_any(const HybridNeeds& needs) {
  return needs.q || needs.k || needs.v || needs.map_q || needs.map_k || needs.window_factors;
}

at::Tensor with_gradients(const ParameterLoss& result, const HybridParameters& parameters) {
  return needs_any(needs_of(parameters))
             ? ParameterLossFunction::apply(present_or_empty(parameters.q.layer),
                                            present_or_empty(parameters.q.bias),
                                            present_or_empty(parameters.k.layer),
                                            present_or_empty(parameters.k.bias),
                                            present_or_empty(parameters.window_factors),
                                            result)
             : result.loss;
}

at::Tensor like_parameter(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.defined() ? gradient.reshape(parameter.sizes()).to(parameter.scalar_type())
                            : gradient;
}

}  // namespace hedgerow::kernels
