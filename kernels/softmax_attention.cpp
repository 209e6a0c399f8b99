#include "kernels/softmax_attention.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "kernels/checks.hpp"
#include "kernels/cpu_tiles.hpp"
#include "kernels/softmax_attention_cpu.hpp"

namespace hedgerow::kernels {

at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check_attention(q, k, v);
  const c10::NoGradGuard no_grad;
  // ATen's own is the faster one where it has AMX tiles for bf16, and the only one for fp64.
  if (q.scalar_type() == at::kDouble ||
      cpu::products_for(q.scalar_type()) == cpu::Products::kBFloat16) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true));
  }
  TORCH_CHECK(
      q.is_cpu(), "softmax attention: q must be on the CPU in this build, found ", q.device());
  return cpu::softmax_attention_cpu(q, k, v);
}

at::Tensor softmax_attention_trainable(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v) {
  const AttentionShape shape = check_attention(q, k, v);
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, {}, shape.group() > 1);
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
