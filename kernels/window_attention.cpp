#include "kernels/window_attention.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels {
namespace {

// Queries of a tile: as many as a window has keys, so that half of the pairs count, within bounds:
// below the first the launches cost more than the pairs, above the second weights leave the cache.
constexpr std::int64_t kFewestQueries = 32, kMostQueries = 128;

// The sequence's keys or values that a tile sees: sinks before `first`, then first..end - 1.
at::Tensor seen(const at::Tensor& x, std::int64_t sinks, std::int64_t first, std::int64_t end) {
  const at::Tensor near = x.narrow(1, first, end - first);
  return sinks == 0 ? near : at::cat({x.narrow(1, 0, sinks), near}, 1);
}

// [count, 1] int64: where the windows of the queries begin, begin + 1, ... begin.
at::Tensor window_begins(const HybridOptions& options, std::int64_t begin, std::int64_t count) {
  const at::Tensor begins = at::empty({count, 1}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    begins.data_ptr<std::int64_t>()[i] =
        window_begin(options.window, options.window_size, begin + i);
  }
  return begins;
}

// q [H, T, D] scaled, k and v [G, T, D] -> y [H, T, D], all of the sums' dtype.
void attend_window(const at::Tensor& q,
                   const at::Tensor& k,
                   const at::Tensor& v,
                   const HybridOptions& options,
                   const at::Tensor& y) {
  const std::int64_t T = q.size(1), G = k.size(0), R = q.size(0) / G;
  const std::int64_t tile = std::clamp(options.window_size, kFewestQueries, kMostQueries);
  const at::Tensor tokens = at::arange(T, at::TensorOptions(at::kLong));
  for (std::int64_t begin = 0; begin < T; begin += tile) {
    const std::int64_t count = std::min(tile, T - begin), end = begin + count;
    const std::int64_t first = window_begin(options.window, options.window_size, begin);
    const std::int64_t sinks = std::min(options.num_sinks, first);
    const at::Tensor keys =
        sinks == 0 ? tokens.narrow(0, first, end - first)
                   : at::cat({tokens.narrow(0, 0, sinks), tokens.narrow(0, first, end - first)});
    const at::Tensor begins = window_begins(options, begin, count);
    const at::Tensor queries = tokens.narrow(0, begin, count).unsqueeze(1);
    const at::Tensor unseen =
        keys.gt(queries)
            .logical_or(keys.lt(begins).logical_and(keys.ge(options.num_sinks)))
            .to(q.device())
            .repeat({R, 1});
    // Heads that share keys lie below each other: [G, R count, D].
    const at::Tensor rows = q.narrow(1, begin, count).unflatten(0, {G, R}).flatten(1, 2);
    const at::Tensor weights =
        at::softmax(at::matmul(rows, seen(k, sinks, first, end).transpose(-1, -2))
                        .masked_fill_(unseen, -INFINITY),
                    -1);
    y.narrow(1, begin, count)
        .copy_(
            at::matmul(weights, seen(v, sinks, first, end)).unflatten(1, {R, count}).flatten(0, 1));
  }
}

void check_window_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridOptions& options) {
  check_attention(q, k, v);
  TORCH_CHECK(options.window != WindowLayout::kNone,
              "window attention: needs a window, found the layout none");
  check_options(options);
}

at::Tensor each_sequence(const at::Tensor& q,
                         const at::Tensor& k,
                         const at::Tensor& v,
                         const HybridOptions& options) {
  const at::ScalarType dtype = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor y =
      at::empty(q.sizes(), q.options().dtype(options.fp32_output ? dtype : q.scalar_type()));
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    attend_window(q[b].to(dtype).mul(scale), k[b].to(dtype), v[b].to(dtype), options, y[b]);
  }
  return y;
}

}  // namespace

at::Tensor window_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridOptions& options,
                            Backend backend) {
  RECORD_USER_SCOPE("hedgerow::window_attention");
  check_window_attention(q, k, v, options);
  TORCH_CHECK(backend != Backend::kCpu,
              "window attention: no CPU backend computes it; the ATen backend does");
  const cuda::HybridBackend* fused = cuda::hybrid_backend();
  const Backend chosen = choose_backend("window attention", backend, q, [&]() -> std::string {
    return fused == nullptr ? cuda::kNoCudaKernels : fused->why_not_window(q);
  });
  const c10::NoGradGuard no_grad;
  return chosen == Backend::kCuda ? fused->window(q, k, v, options)
                                  : each_sequence(q, k, v, options);
}

}  // namespace hedgerow::kernels
