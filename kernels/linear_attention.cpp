#include "kernels/linear_attention.hpp"

#include <ATen/ATen.h>

#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels {
namespace {

// Tokens walked at once: within them the products are a triangle, before them a carried state.
constexpr std::int64_t kChunk = 64;

}  // namespace

void check_linear_attention(const at::Tensor& phi_q, const at::Tensor& phi_k, const at::Tensor& v) {
  TORCH_CHECK(phi_q.dim() == 4,
              "linear attention: phi_q must be [B, H, T, F], found ",
              describe(phi_q.sizes()));
  TORCH_CHECK(phi_k.sizes() == phi_q.sizes(),
              "linear attention: phi_k must have phi_q's shape ",
              describe(phi_q.sizes()),
              ", found ",
              describe(phi_k.sizes()));
  TORCH_CHECK(v.dim() == 4 && v.sizes().slice(0, 3) == phi_q.sizes().slice(0, 3),
              "linear attention: v must have phi_q's batch, heads and tokens ",
              describe(phi_q.sizes().slice(0, 3)),
              ", found ",
              describe(v.sizes()));
  const at::ScalarType dtype = phi_q.scalar_type();
  TORCH_CHECK((dtype == at::kFloat || dtype == at::kDouble) && phi_k.scalar_type() == dtype,
              "linear attention: phi_q and phi_k must both be float32 or both float64, found ",
              dtype,
              " and ",
              phi_k.scalar_type());
  TORCH_CHECK(v.is_floating_point(),
              "linear attention: v must be of a floating dtype, found ",
              v.scalar_type());
}

at::Tensor causal_linear_attention(const at::Tensor& phi_q,
                                   const at::Tensor& phi_k,
                                   const at::Tensor& v) {
  check_linear_attention(phi_q, phi_k, v);
  const std::int64_t T = phi_q.size(2), F = phi_q.size(3), D = v.size(3);
  const std::int64_t num_chunks = (T + kChunk - 1) / kChunk;
  const std::int64_t padding = num_chunks * kChunk - T;
  const auto chunked = [&](const at::Tensor& x) {
    return at::constant_pad_nd(x, {0, 0, 0, padding}).unflatten(2, {num_chunks, kChunk});
  };
  const at::Tensor q = chunked(phi_q), k = chunked(phi_k);
  // A column of ones beside v carries the denominator through the same products.
  const at::Tensor values = chunked(at::constant_pad_nd(v.to(phi_q.scalar_type()), {0, 1}, 1.0));
  // The state before each chunk: [B, H, chunks, F, D + 1]. Shifted and summed, not summed and
  // subtracted, which would let a chunk's own keys leave rounding in earlier queries.
  const at::Tensor sums = at::matmul(k.transpose(-1, -2), values);
  const at::Tensor before = at::cumsum(at::constant_pad_nd(sums, {0, 0, 0, 0, 1, -1}), 2);
  const at::Tensor inside = at::tril(at::matmul(q, k.transpose(-1, -2)));
  const at::Tensor both =
      (at::matmul(q, before) + at::matmul(inside, values)).flatten(2, 3).narrow(2, 0, T);
  TORCH_INTERNAL_ASSERT(both.size(3) == D + 1 && before.size(3) == F);
  return (both.narrow(3, 0, D) / (both.narrow(3, D, 1) + kLinearEpsilon)).to(v.scalar_type());
}

at::Tensor bidirectional_linear_attention(const at::Tensor& phi_q,
                                          const at::Tensor& phi_k,
                                          const at::Tensor& v) {
  check_linear_attention(phi_q, phi_k, v);
  const at::Tensor kv_state = at::matmul(phi_k.transpose(-1, -2), v.to(phi_q.scalar_type()));
  const at::Tensor k_state = phi_k.sum(2).unsqueeze(-1);
  const at::Tensor y = at::matmul(phi_q, kv_state) / (at::matmul(phi_q, k_state) + kLinearEpsilon);
  return y.to(v.scalar_type());
}

}  // namespace hedgerow::kernels
