#include "kernels/softmax_attention.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "kernels/aten/softmax_attention_aten.hpp"
#include "kernels/cpu/cpu_tiles.hpp"
#include "kernels/cpu/softmax_attention_cpu.hpp"
#include "kernels/cuda/attention_transfer_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels {
namespace {

// A backend's forward behind autograd, and a backward of ours: ATen's own holds T x T for grouped
// heads on the CPU, and adds in no fixed order on CUDA.
class SoftmaxFunction : public torch::autograd::Function<SoftmaxFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            Backend backend) {
    context->save_for_backward({q, k, v});
    return softmax_attention(q, k, v, backend);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    RECORD_USER_SCOPE("hedgerow::softmax_backward");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const aten::SoftmaxGradients gradients =
        aten::softmax_backward_aten(saved[0], saved[1], saved[2], dy[0]);
    return {gradients.q, gradients.k, gradients.v, at::Tensor()};
  }
};

}  // namespace

at::Tensor softmax_attention(const at::Tensor& q,
                             const at::Tensor& k,
                             const at::Tensor& v,
                             Backend backend) {
  RECORD_USER_SCOPE("hedgerow::softmax_attention");
  check_attention(q, k, v);
  const c10::NoGradGuard no_grad;
  const cuda::TransferBackend* fused = cuda::transfer_backend();
  switch (choose_backend("softmax_attention", backend, q, [&]() -> std::string {
    return fused == nullptr ? cuda::kNoCudaKernels : fused->why_no_softmax(q);
  })) {
    case Backend::kCuda:
      return fused->softmax(q, k, v);
    case Backend::kCpu:
      // ATen's own is the faster one where it has AMX tiles for bf16, and the only one for fp64.
      return q.scalar_type() == at::kDouble ||
                     cpu::products_for(q.scalar_type()) == cpu::Products::kBFloat16
                 ? std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true))
                 : cpu::softmax_attention_cpu(q, k, v);
    case Backend::kAuto:
    case Backend::kAten:
      break;
  }
  return aten::softmax_attention_aten(q, k, v);
}

at::Tensor softmax_attention_by_sequence(const at::Tensor& q,
                                         const at::Tensor& k,
                                         const at::Tensor& v,
                                         Backend backend) {
  if (q.dim() != 4 || q.size(0) == 1) {
    return softmax_attention(q, k, v, backend);
  }
  std::vector<at::Tensor> sequences;
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    sequences.push_back(
        softmax_attention(q.narrow(0, b, 1), k.narrow(0, b, 1), v.narrow(0, b, 1), backend));
  }
  return at::cat(sequences);
}

at::Tensor softmax_attention_trainable(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v,
                                       Backend backend) {
  check_attention(q, k, v);
  return SoftmaxFunction::apply(q, k, v, backend);
}

at::Tensor softmax_attention_reference(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v) {
  const AttentionShape shape = check_attention(q, k, v);
  const at::Tensor keys = k.repeat_interleave(shape.group(), 1),
                   values = v.repeat_interleave(shape.group(), 1);
  const at::Tensor future = at::ones({shape.T, shape.T}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor scores =
      at::matmul(q, keys.transpose(-1, -2)) / std::sqrt(static_cast<double>(shape.D));
  const at::Tensor weights = at::softmax(scores.masked_fill(future, -INFINITY), -1);
  return at::matmul(weights, values);
}

}  // namespace hedgerow::kernels
