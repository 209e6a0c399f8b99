#include "worker/model/elementwise.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <utility>

#include "worker/model/elementwise_cpu.hpp"

namespace hedgerow::worker {
namespace {

bool fast(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({halves[1].neg(), halves[0]}, -1) * sin;
}

}  // namespace

const kernels::cuda::ElementwiseBackend* fused_for(const at::Tensor& rows) {
  const kernels::cuda::ElementwiseBackend* backend =
      rows.is_cuda() ? kernels::cuda::elementwise_backend() : nullptr;
  return backend != nullptr && backend->takes(rows) ? backend : nullptr;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  RECORD_USER_SCOPE("hedgerow::rms_norm");
  if (fast(x)) return cpu::rms_norm(x.contiguous(), weight, eps);
  if (const auto* cuda = fused_for(x)) return cuda->rms_norm(x, weight, eps);
  return plain_rms_norm(x, weight, eps);
}

Normed add_rms_norm(const at::Tensor& residual,
                    const at::Tensor& update,
                    const at::Tensor& weight,
                    double eps) {
  RECORD_USER_SCOPE("hedgerow::add_rms_norm");
  if (fast(residual))
    return cpu::add_rms_norm(residual.contiguous(), update.contiguous(), weight, eps);
  if (const auto* cuda = fused_for(residual); cuda != nullptr && residual.sizes() == update.sizes()) {
    auto [sum, normed] = cuda->add_rms_norm(residual, update, weight, eps);
    return {std::move(sum), std::move(normed)};
  }
  const at::Tensor sum = residual + update;
  return {sum, plain_rms_norm(sum, weight, eps)};
}

at::Tensor add_round(const at::Tensor& residual, const at::Tensor& update, at::ScalarType stream) {
  RECORD_USER_SCOPE("hedgerow::add_round");
  // ATen adds two bf16 in fp32 and rounds once.
  if (residual.is_cuda() && residual.scalar_type() == at::kBFloat16 &&
      update.scalar_type() == at::kBFloat16 && stream != at::kHalf)
    return residual + update;
  if (!fast(residual) || stream == at::kHalf) return plain_add_round(residual, update, stream);
  return cpu::add_round(residual.contiguous(), update.contiguous(), stream);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  RECORD_USER_SCOPE("hedgerow::swiglu");
  if (fast(gate_up)) return cpu::swiglu(gate_up.contiguous());
  // Of both halves.
  if (const auto* cuda = fused_for(gate_up); cuda != nullptr && gate_up.size(-1) % 16 == 0)
    return cuda->swiglu(gate_up);
  return plain_swiglu(gate_up);
}

Qkv split_heads(const at::Tensor& qkv,
                std::int64_t num_heads,
                std::int64_t num_kv_heads,
                const at::Tensor& cos,
                const at::Tensor& sin,
                const HeadNorms& norms) {
  RECORD_USER_SCOPE("hedgerow::split_heads");
  const std::int64_t dim = qkv.size(-1) / (num_heads + 2 * num_kv_heads);
  if (const auto* cuda = fused_for(qkv); cuda != nullptr && cuda->takes_heads(qkv, dim)) {
    auto [q, k, v] = cuda->split_heads(
        qkv, {num_heads, num_kv_heads, cos, sin, norms.q, norms.k, norms.eps});
    return {std::move(q), std::move(k), std::move(v)};
  }
  if (!fast(qkv)) return plain_split_heads(qkv, num_heads, num_kv_heads, cos, sin, norms);
  return cpu::split_heads(qkv.contiguous(), num_heads, num_kv_heads, cos, sin, norms);
}

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  return (wide * at::rsqrt(wide.square().mean(-1, true) + eps) * weight).to(x.scalar_type());
}

at::Tensor plain_add_round(const at::Tensor& residual,
                           const at::Tensor& update,
                           at::ScalarType stream) {
  return (residual.to(at::kFloat) + update.to(at::kFloat))
      .to(residual.scalar_type())
      .to(stream)
      .to(residual.scalar_type());
}

at::Tensor plain_swiglu(const at::Tensor& gate_up) {
  const auto halves = gate_up.to(at::kFloat).chunk(2, -1);
  return (at::silu(halves[0]) * halves[1]).to(gate_up.scalar_type());
}

Qkv plain_split_heads(const at::Tensor& qkv,
                      std::int64_t num_heads,
                      std::int64_t num_kv_heads,
                      const at::Tensor& cos,
                      const at::Tensor& sin,
                      const HeadNorms& norms) {
  const std::int64_t dim = qkv.size(-1) / (num_heads + 2 * num_kv_heads);
  const at::Tensor heads =
      qkv.unflatten(-1, {num_heads + 2 * num_kv_heads, dim}).transpose(1, 2).to(at::kFloat);
  at::Tensor q = heads.narrow(1, 0, num_heads);
  at::Tensor k = heads.narrow(1, num_heads, num_kv_heads);
  if (norms.q.defined()) q = plain_rms_norm(q, norms.q, norms.eps);
  if (norms.k.defined()) k = plain_rms_norm(k, norms.k, norms.eps);
  const at::ScalarType dtype = qkv.scalar_type();
  return {rotate(q, cos, sin).to(dtype).contiguous(),
          rotate(k, cos, sin).to(dtype).contiguous(),
          heads.narrow(1, num_heads + num_kv_heads, num_kv_heads).to(dtype).contiguous()};
}

}  // namespace hedgerow::worker
