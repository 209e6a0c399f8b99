// y = softmax(q k^T / sqrt(D)) v over keys <= query, in fp32. A tile holds the scores of 64 queries
// with all their keys, [keys, 64]: 256 bytes a key of scratch, no running maximum, and the two
// products of a tile are as long as they can be. 2 T^2 D FLOPs a head (half of the square, two
// products).
#include "kernels/cpu/softmax_attention_cpu.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "kernels/cpu/hybrid_head_cpu.hpp"

namespace hedgerow::kernels::cpu {
namespace {

constexpr std::int64_t kQueriesAtOnce = 64;

}  // namespace

at::Tensor softmax_attention_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const AttentionShape shape = shape_of(q, k);
  const std::int64_t T = shape.T, D = shape.D, width = padded(D);
  const Products products = products_for(q.scalar_type());
  const float scale = 1.0F / std::sqrt(static_cast<float>(D));
  const auto unit_stride = [](const at::Tensor& x) {
    return x.stride(3) == 1 ? x : x.contiguous();
  };
  const at::Tensor queries = unit_stride(q), keys = unit_stride(k), values = unit_stride(v);
  at::Tensor y = at::empty({shape.B, T, shape.H, D}, q.options()).transpose(1, 2);
  at::parallel_for(0, shape.B * shape.H, 1, [&](std::int64_t begin, std::int64_t end) {
    const ProductsScope scope(products);
    HeadRows q_rows(queries), k_rows(keys), v_rows(values);
    Scratch q_transposed(D * kQueriesAtOnce), weights(T * kQueriesAtOnce),
        tile(kQueriesAtOnce * width), lanes(4 * kQueriesAtOnce);
    float *maxima = lanes.data(), *sums = maxima + kQueriesAtOnce, *inverse = sums + kQueriesAtOnce,
          *ones = inverse + kQueriesAtOnce;
    std::fill(ones, ones + kQueriesAtOnce, 1.0F);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t b = task / shape.H, h = task % shape.H;
      const Rows qh = q_rows.rows(b, h), kh = k_rows.rows(b, h / shape.group()),
                 vh = v_rows.rows(b, h / shape.group());
      for (std::int64_t first = 0; first < T; first += kQueriesAtOnce) {
        const std::int64_t last = std::min(first + kQueriesAtOnce, T), n = last - first;
        transpose(qh.row(first), qh.ld, n, D, q_transposed.data(), kQueriesAtOnce);
        multiply(products,
                 {last, n, D},
                 as_stored(kh.data, kh.ld),
                 {q_transposed.data(), kQueriesAtOnce},
                 weights.data(),
                 kQueriesAtOnce,
                 false);
        const TileMask causal{0, first, 0, kNoLag};
        window_weights(weights.data(),
                       kQueriesAtOnce,
                       last,
                       padded(n),
                       causal,
                       scale,
                       ones,
                       weights.data(),
                       maxima,
                       sums);
        multiply(products,
                 {n, D, last},
                 transposed(weights.data(), kQueriesAtOnce),
                 vh.right(0),
                 tile.data(),
                 width,
                 false);
        for (std::int64_t i = 0; i < n; ++i) {
          inverse[i] = 1.0F / sums[i];
        }
        const std::int64_t offset = b * y.stride(0) + h * y.stride(1) + first * y.stride(2);
        auto* to =
            static_cast<char*>(y.data_ptr()) + offset * static_cast<std::int64_t>(y.element_size());
        narrow_rows(tile.data(), width, n, D, inverse, to, y.scalar_type(), y.stride(2));
      }
    }
  });
  return y;
}

}  // namespace hedgerow::kernels::cpu
