#include "worker/model/layer/rotary.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "worker/model/layer/cpu_rows.hpp"

namespace hedgerow::worker {
namespace {

at::Tensor inverse_frequencies(const storage::ModelConfig& config) {
  const storage::RopeConfig& rope = config.rope;
  const at::Tensor exponents =
      at::arange(0, config.head_dim, 2, at::kLong).to(at::kFloat) / config.head_dim;
  const at::Tensor plain = 1.0 / at::pow(at::Scalar(rope.theta), exponents);
  if (rope.kind == storage::RopeConfig::Kind::kLinear) return plain / rope.factor;
  if (rope.kind == storage::RopeConfig::Kind::kDefault) return plain;
  // Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between
  // interpolated.
  const double context = rope.original_max_position_embeddings;
  const at::Tensor wavelength = 2.0 * std::numbers::pi / plain;
  const at::Tensor smooth = (context / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between = (1.0 - smooth) * plain / rope.factor + smooth * plain;
  const at::Tensor stretched =
      at::where(wavelength > context / rope.low_freq_factor, plain / rope.factor, between);
  return at::where(wavelength < context / rope.high_freq_factor, plain, stretched);
}

at::Tensor rotate(const at::Tensor& x, const RopeTable& rope) {
  const auto halves = x.chunk(2, -1);
  return x * rope.cos + at::cat({halves[1].neg(), halves[0]}, -1) * rope.sin;
}

// The transpose of the rotation (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).
at::Tensor rotate_back(const at::Tensor& dy, const RopeTable& rope) {
  const auto halves = dy.chunk(2, -1);
  return dy * rope.cos + at::cat({halves[1], halves[0].neg()}, -1) * rope.sin;
}

// Norms of all heads together come before the split.
bool spans_heads(const HeadNorms& norms, std::int64_t head_dim) {
  const auto spans = [&](const at::Tensor& w) { return w.defined() && w.numel() != head_dim; };
  return spans(norms.q) || spans(norms.k);
}

// The columns of q, k and v in qkv [..., (H + 2 G) D].
std::vector<at::Tensor> columns(const at::Tensor& qkv, std::int64_t q, std::int64_t kv) {
  return qkv.split_with_sizes({q, kv, kv}, -1);
}

template <typename Norm>
at::Tensor with_norms(const at::Tensor& qkv, const HeadNorms& norms, const Norm& norm) {
  const auto parts = columns(qkv, norms.q.numel(), norms.k.numel());
  return at::cat({norm(parts[0], norms.q, norms.eps), norm(parts[1], norms.k, norms.eps), parts[2]},
                 -1);
}

// The gradient of with_norms in qkv, given that of its output.
template <typename NormBackward>
at::Tensor with_norms_backward(const at::Tensor& gradient,
                               const at::Tensor& qkv,
                               const HeadNorms& norms,
                               const NormBackward& backward) {
  const auto dy = columns(gradient, norms.q.numel(), norms.k.numel());
  const auto x = columns(qkv, norms.q.numel(), norms.k.numel());
  const auto through = [&](std::size_t i, const at::Tensor& weight) {
    return backward(at::zeros_like(x[i], at::MemoryFormat::Contiguous),
                    dy[i].contiguous(),
                    at::Tensor(),
                    x[i].contiguous(),
                    weight,
                    norms.eps);
  };
  return at::cat({through(0, norms.q), through(1, norms.k), dy[2]}, -1);
}

}  // namespace

RopeTable make_rope_table(const storage::ModelConfig& config,
                          std::int64_t num_positions,
                          const at::Device& device) {
  const at::Tensor positions = at::arange(num_positions, at::kLong).to(at::kFloat);
  const at::Tensor angles = positions.unsqueeze(1) * inverse_frequencies(config).unsqueeze(0);
  const at::Tensor both = at::cat({angles, angles}, -1);
  return {both.cos().to(device), both.sin().to(device)};
}

RopeTable identity_like(const RopeTable& table) {
  return {at::ones_like(table.cos), at::zeros_like(table.sin)};
}

Qkv split_heads(const at::Tensor& qkv,
                std::int64_t num_heads,
                std::int64_t num_kv_heads,
                const RopeTable& rope,
                const HeadNorms& norms) {
  RECORD_USER_SCOPE("hedgerow::split_heads");
  const std::int64_t dim = qkv.size(-1) / (num_heads + 2 * num_kv_heads);
  if (spans_heads(norms, dim))
    return split_heads(with_norms(qkv, norms, rms_norm), num_heads, num_kv_heads, rope, {});
  if (const auto* cuda = fused_for(qkv); cuda != nullptr && cuda->takes_heads(qkv, dim)) {
    auto [q, k, v] = cuda->split_heads(
        qkv, {num_heads, num_kv_heads, rope.cos, rope.sin, norms.q, norms.k, norms.eps});
    return {std::move(q), std::move(k), std::move(v)};
  }
  if (!has_cpu_rows(qkv)) return plain_split_heads(qkv, num_heads, num_kv_heads, rope, norms);
  return cpu::split_heads(qkv.contiguous(), num_heads, num_kv_heads, rope, norms);
}

at::Tensor split_heads_backward(const Qkv& gradient,
                                const at::Tensor& qkv,
                                const RopeTable& rope,
                                const HeadNorms& norms) {
  RECORD_USER_SCOPE("hedgerow::split_heads_backward");
  if (spans_heads(norms, gradient.q.size(3))) {
    return with_norms_backward(
        split_heads_backward(gradient, {}, rope, {}), qkv, norms, rms_norm_backward);
  }
  if (is_trained(norms.q) || is_trained(norms.k)) {
    const std::int64_t num_heads = gradient.q.size(1);
    const std::int64_t num_kv_heads = gradient.k.size(1);
    const at::Tensor heads =
        qkv.unflatten(-1, {num_heads + 2 * num_kv_heads, -1}).transpose(1, 2).to(at::kFloat);
    const auto add = [&](const at::Tensor& weight, const at::Tensor& dy, std::int64_t first) {
      if (!is_trained(weight)) return;
      add_weight_gradient(weight,
                          rotate_back(dy.to(at::kFloat), rope),
                          heads.narrow(1, first, dy.size(1)),
                          norms.eps);
    };
    add(norms.q, gradient.q, 0);
    add(norms.k, gradient.k, num_heads);
  }
  if (const auto* cuda = fused_for(gradient.q);
      cuda != nullptr && cuda->takes_heads(gradient.q, gradient.q.size(3))) {
    return cuda->split_heads_backward(
        {gradient.q, gradient.k, gradient.v},
        qkv,
        {gradient.q.size(1), gradient.k.size(1), rope.cos, rope.sin, norms.q, norms.k, norms.eps});
  }
  if (!has_cpu_rows(gradient.q)) return plain_split_heads_backward(gradient, qkv, rope, norms);
  return cpu::split_heads_backward(
      {gradient.q.contiguous(), gradient.k.contiguous(), gradient.v.contiguous()},
      qkv,
      rope,
      norms);
}

Qkv plain_split_heads(const at::Tensor& qkv,
                      std::int64_t num_heads,
                      std::int64_t num_kv_heads,
                      const RopeTable& rope,
                      const HeadNorms& norms) {
  const std::int64_t dim = qkv.size(-1) / (num_heads + 2 * num_kv_heads);
  if (spans_heads(norms, dim)) {
    return plain_split_heads(
        with_norms(qkv, norms, plain_rms_norm), num_heads, num_kv_heads, rope, {});
  }
  const at::Tensor heads =
      qkv.unflatten(-1, {num_heads + 2 * num_kv_heads, dim}).transpose(1, 2).to(at::kFloat);
  at::Tensor q = heads.narrow(1, 0, num_heads);
  at::Tensor k = heads.narrow(1, num_heads, num_kv_heads);
  if (norms.q.defined()) q = plain_rms_norm(q, norms.q, norms.eps);
  if (norms.k.defined()) k = plain_rms_norm(k, norms.k, norms.eps);
  const at::ScalarType dtype = qkv.scalar_type();
  return {rotate(q, rope).to(dtype).contiguous(),
          rotate(k, rope).to(dtype).contiguous(),
          heads.narrow(1, num_heads + num_kv_heads, num_kv_heads).to(dtype).contiguous()};
}

at::Tensor plain_split_heads_backward(const Qkv& gradient,
                                      const at::Tensor& qkv,
                                      const RopeTable& rope,
                                      const HeadNorms& norms) {
  if (spans_heads(norms, gradient.q.size(3))) {
    return with_norms_backward(
        plain_split_heads_backward(gradient, {}, rope, {}), qkv, norms, plain_rms_norm_backward);
  }
  const std::int64_t num_heads = gradient.q.size(1);
  const std::int64_t num_kv_heads = gradient.k.size(1);
  at::Tensor dq = rotate_back(gradient.q.to(at::kFloat), rope);
  at::Tensor dk = rotate_back(gradient.k.to(at::kFloat), rope);
  if (norms.q.defined() || norms.k.defined()) {
    const at::Tensor heads =
        qkv.unflatten(-1, {num_heads + 2 * num_kv_heads, -1}).transpose(1, 2).to(at::kFloat);
    if (norms.q.defined())
      dq = norm_gradient(dq, heads.narrow(1, 0, num_heads), norms.q, norms.eps);
    if (norms.k.defined())
      dk = norm_gradient(dk, heads.narrow(1, num_heads, num_kv_heads), norms.k, norms.eps);
  }
  const at::ScalarType dtype = gradient.q.scalar_type();
  return at::cat({dq.to(dtype), dk.to(dtype), gradient.v.to(dtype)}, 1).transpose(1, 2).flatten(2);
}

}  // namespace hedgerow::worker
