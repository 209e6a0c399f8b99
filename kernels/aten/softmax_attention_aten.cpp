#include "kernels/aten/softmax_attention_aten.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "kernels/aten/chunks_aten.hpp"
#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels::aten {

at::Tensor softmax_attention_aten(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const c10::NoGradGuard no_grad;
  const std::int64_t group = q.size(1) / k.size(1);
  // CUDA's flash backend reads grouped heads as they are, but takes no fp32. The other fused ones
  // know no groups, and what ATen falls back to would hold T x T.
  const bool repeat = group > 1 && !(q.is_cuda() && q.scalar_type() == at::kBFloat16);
  const at::Tensor keys = repeat ? k.repeat_interleave(group, 1) : k;
  const at::Tensor values = repeat ? v.repeat_interleave(group, 1) : v;
  return at::scaled_dot_product_attention(
      q, keys, values, {}, 0.0, true, {}, keys.size(1) != q.size(1));
}

SoftmaxGradients softmax_backward_aten(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v,
                                       const at::Tensor& dy) {
  const AttentionShape shape = shape_of(q, k);
  const std::int64_t G = shape.G, R = shape.group(), T = shape.T;
  const at::ScalarType dtype = sum_dtype_of(q);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.D));
  const at::Tensor keys = k.to(dtype), values = v.to(dtype);
  const at::Tensor tokens = at::arange(T, q.options().dtype(at::kLong));
  at::Tensor dq = at::empty_like(q), dk = at::zeros_like(keys), dv = at::zeros_like(values);
  const std::int64_t tile = query_tile(shape.B * shape.H, T);
  for (std::int64_t begin = 0; begin < T; begin += tile) {
    const std::int64_t count = std::min(tile, T - begin), end = begin + count;
    // Heads that share keys lie below each other: [B, G, R count, D].
    const auto rows = [&](const at::Tensor& x) {
      return x.narrow(2, begin, count).to(dtype).unflatten(1, {G, R}).flatten(2, 3);
    };
    const at::Tensor queries = rows(q).mul(scale), dy_rows = rows(dy);
    const at::Tensor seen_k = keys.narrow(2, 0, end), seen_v = values.narrow(2, 0, end);
    const at::Tensor future =
        tokens.narrow(0, 0, end).gt(tokens.narrow(0, begin, count).unsqueeze(1)).repeat({R, 1});
    const at::Tensor weights = at::softmax(
        at::matmul(queries, seen_k.transpose(-1, -2)).masked_fill_(future, -INFINITY), -1);
    dv.narrow(2, 0, end).add_(at::matmul(weights.transpose(-1, -2), dy_rows));
    at::Tensor ds = at::matmul(dy_rows, seen_v.transpose(-1, -2));
    ds.sub_((ds * weights).sum(-1, true)).mul_(weights);
    dk.narrow(2, 0, end).add_(at::matmul(ds.transpose(-1, -2), queries));
    dq.narrow(2, begin, count)
        .copy_(at::matmul(ds, seen_k).mul_(scale).unflatten(2, {R, count}).flatten(1, 2));
  }
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

}  // namespace hedgerow::kernels::aten
