#include "kernels/transfer_loss.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/aten/transfer_loss_aten.hpp"
#include "kernels/cpu/transfer_loss_cpu.hpp"
#include "kernels/hybrid_passes.hpp"

namespace hedgerow::kernels {
namespace {

// Both directions in one pass each over the elements, wherever y_pred and y_true lie in memory
// alike (as both attentions write them, [B, T, H, D]); elsewhere they are copied first.
class MseFunction : public torch::autograd::Function<MseFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& y_pred,
                            const at::Tensor& y_true,
                            Backend backend) {
    RECORD_USER_SCOPE("hedgerow::mean_square");
    context->save_for_backward({y_pred, y_true});
    context->saved_data["backend"] = static_cast<std::int64_t>(backend);
    return backend == Backend::kAten ? aten::mean_square_aten(y_pred, y_true)
                                     : cpu::mean_square_cpu(y_pred, y_true);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dloss) {
    RECORD_USER_SCOPE("hedgerow::mean_square_gradient");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const bool in_aten =
        static_cast<Backend>(context->saved_data["backend"].toInt()) == Backend::kAten;
    return {in_aten ? aten::mean_square_gradient_aten(saved[0], saved[1], dloss[0])
                    : cpu::mean_square_gradient_cpu(saved[0], saved[1], dloss[0].item<double>()),
            at::Tensor(),
            at::Tensor()};
  }
};

void check_values(const char* name, const at::Tensor& y) {
  TORCH_CHECK(y.scalar_type() == at::kFloat || y.scalar_type() == at::kBFloat16,
              "transfer_mse: ",
              name,
              " must be float32 or bfloat16, found ",
              y.scalar_type());
}

}  // namespace

void check_mean_square(const at::Tensor& y_pred, const at::Tensor& y_true) {
  TORCH_CHECK(y_pred.sizes() == y_true.sizes(),
              "transfer_mse: y_pred must have y_true's shape ",
              describe(y_true.sizes()),
              ", found ",
              describe(y_pred.sizes()));
  TORCH_CHECK(y_pred.device() == y_true.device(),
              "transfer_mse: y_pred must be on y_true's device ",
              y_true.device(),
              ", found ",
              y_pred.device());
  if (y_pred.scalar_type() != at::kDouble) {
    check_values("y_pred", y_pred);
    check_values("y_true", y_true);
  }
}

at::Tensor transfer_mse(const at::Tensor& y_pred, const at::Tensor& y_true, Backend backend) {
  check_mean_square(y_pred, y_true);
  if (y_pred.scalar_type() == at::kDouble && backend == Backend::kAuto) {
    return at::mse_loss(y_pred, y_true.detach().to(at::kDouble));
  }
  const Backend chosen = choose_backend("transfer_mse", backend, y_pred, [] {
    return std::string("no CUDA kernel computes it alone; the ATen backend does");
  });
  return MseFunction::apply(y_pred, y_true.detach(), chosen);
}

at::Tensor transfer_cross_entropy(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options,
                                  Backend backend) {
  if (q.scalar_type() == at::kDouble && backend == Backend::kAuto) {
    return transfer_cross_entropy_reference(q.detach(), k.detach(), parameters, options);
  }
  const HybridProblem problem = make_hybrid_problem(q, k, {}, parameters, options);
  const Backend chosen = cross_entropy_backend_for(q, parameters, options, backend);
  const bool needed = needs_any(needs_of(parameters));
  const ParameterLoss result = [&] {
    const c10::NoGradGuard no_grad;
    return cross_entropy(chosen, problem, needed);
  }();
  return with_gradients(result, parameters);
}

}  // namespace hedgerow::kernels
