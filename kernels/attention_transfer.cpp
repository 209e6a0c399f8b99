#include "kernels/attention_transfer.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>

#include "kernels/attention_transfer_cuda.hpp"
#include "kernels/checks.hpp"
#include "kernels/forms.hpp"
#include "kernels/hybrid_attention_cuda.hpp"

namespace hedgerow::kernels {
namespace {

// The fused form: the gradients come with the value and are scaled in the backward.
class TransferFunction : public torch::autograd::Function<TransferFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& layer_q,
                                                const at::Tensor& bias_q,
                                                const at::Tensor& layer_k,
                                                const at::Tensor& bias_k,
                                                const at::Tensor& window_factors,
                                                const at::Tensor& q,
                                                const at::Tensor& k,
                                                const at::Tensor& v,
                                                const HybridOptions& options) {
    const HybridParameters parameters{
        .q = {undefined_if_empty(layer_q), undefined_if_empty(bias_q)},
        .k = {undefined_if_empty(layer_k), undefined_if_empty(bias_k)},
        .window_factors = undefined_if_empty(window_factors)};
    const HybridNeeds needs{.map_q = layer_q.requires_grad() || bias_q.requires_grad(),
                            .map_k = layer_k.requires_grad() || bias_k.requires_grad(),
                            .window_factors = window_factors.requires_grad()};
    const cuda::TransferResult result =
        cuda::transfer_form()->transfer(make_hybrid_problem(q, k, v, parameters, options), needs);
    const HybridGradients& gradients = result.gradients;
    context->save_for_backward({like(gradients.map_q.layer, layer_q),
                                like(gradients.map_q.bias, bias_q),
                                like(gradients.map_k.layer, layer_k),
                                like(gradients.map_k.bias, bias_k),
                                like(gradients.window_factors, window_factors)});
    context->mark_non_differentiable({result.y_true});
    return {result.y_true, result.mse};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& d) {
    torch::autograd::variable_list gradients;
    for (const at::Tensor& gradient : context->get_saved_variables()) {
      gradients.push_back(gradient.defined() ? gradient * d[1] : gradient);
    }
    gradients.resize(kNumParameters + 4);  // none for q, k, v and the options
    return gradients;
  }

 private:
  static constexpr std::size_t kNumParameters = 5;

  static at::Tensor like(const at::Tensor& gradient, const at::Tensor& parameter) {
    return gradient.defined() ? gradient.reshape(parameter.sizes()).to(parameter.scalar_type())
                              : gradient;
  }
};

AttentionTransfer fused(const at::Tensor& q,
                        const at::Tensor& k,
                        const at::Tensor& v,
                        const HybridParameters& parameters,
                        const HybridOptions& options) {
  if (!any_requires_grad({parameters.q.layer,
                          parameters.q.bias,
                          parameters.k.layer,
                          parameters.k.bias,
                          parameters.window_factors})) {
    const cuda::TransferResult result = cuda::transfer_form()->transfer(
        make_hybrid_problem(q, k, v, parameters, options), HybridNeeds{});
    return {result.y_true, result.mse};
  }
  const torch::autograd::variable_list results =
      TransferFunction::apply(present_or_empty(parameters.q.layer),
                              present_or_empty(parameters.q.bias),
                              present_or_empty(parameters.k.layer),
                              present_or_empty(parameters.k.bias),
                              present_or_empty(parameters.window_factors),
                              q.detach(),
                              k.detach(),
                              v.detach(),
                              options);
  return {results[0], results[1]};
}

AttentionTransfer composed(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           const HybridParameters& parameters,
                           HybridOptions options) {
  options.fp32_output = true;
  const at::Tensor y_true = softmax_attention_by_sequence(q, k, v);
  const at::Tensor y = hybrid_attention(q.detach(), k.detach(), v.detach(), parameters, options);
  return {y_true, transfer_mse(y, y_true)};
}

void check_inputs(const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const HybridParameters& parameters,
                  const HybridOptions& options) {
  check_attention(q, k, v);
  check_parameters(parameters, options, q.size(1), q.size(3), q.device());
}

}  // namespace

AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options) {
  check_inputs(q, k, v, parameters, options);
  const cuda::TransferForm* form = q.is_cuda() ? cuda::transfer_form() : nullptr;
  const bool is_fused = form != nullptr && form->why_no_transfer(q, parameters, options).empty();
  return is_fused ? fused(q, k, v, parameters, options) : composed(q, k, v, parameters, options);
}

namespace cuda {

namespace {
std::atomic<const TransferForm*> form = kBuiltTransferForm;
}  // namespace

const TransferForm* transfer_form() { return form.load(); }
void use_transfer_form(const TransferForm* other) { form.store(other); }

AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options) {
  check_inputs(q, k, v, parameters, options);
  TORCH_CHECK(transfer_form() != nullptr, "attention_transfer: ", kNoCudaKernels);
  const std::string reason = transfer_form()->why_no_transfer(q, parameters, options);
  TORCH_CHECK(reason.empty(), "attention_transfer: ", reason);
  return fused(q, k, v, parameters, options);
}

at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check_attention(q, k, v);
  TORCH_CHECK(transfer_form() != nullptr, "softmax_attention: ", kNoCudaKernels);
  const std::string reason = transfer_form()->why_no_softmax(q);
  TORCH_CHECK(reason.empty(), "softmax_attention: ", reason);
  return transfer_form()->softmax(q, k, v);
}

}  // namespace cuda
}  // namespace hedgerow::kernels
