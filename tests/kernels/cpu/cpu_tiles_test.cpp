// The arithmetic under the fused kernels, where a wrong border would show only in some shapes.
#include "kernels/cpu/cpu_tiles.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "kernels/cpu/attention_tiles.hpp"
#include "kernels/cpu/hybrid_head_cpu.hpp"

namespace hedgerow::kernels::cpu {
namespace {

at::Tensor pad_columns(const at::Tensor& x) {
  return at::constant_pad_nd(x, {0, padded(x.size(1)) - x.size(1)}).contiguous();
}

TEST(Scratch, LiesWhereTheThreadsLastOfItsSizeLayAndIsZeroAgain) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a sanitized build keeps none, to see an access behind the end";
#endif
  // A thread of its own, which keeps nothing of the tests before.
  std::jthread([] {
    const float* first = nullptr;
    {
      Scratch small(100), large(5000);
      first = large.data();
      large.data()[4999] = 1.0F;
    }
    const std::vector<float> taker(5016);  // would get it from malloc
    Scratch again(5000), other(100);
    EXPECT_EQ(again.data(), first);
    EXPECT_EQ(again.data()[4999], 0.0F);
  }).join();
}

TEST(TileProduct, EqualsMatmulForAnySizeAndSide) {
  at::manual_seed(3);
  for (const Products products : {Products::kFloat, Products::kBFloat16}) {
    if (!runs(products)) {
      continue;
    }
    for (const std::int64_t m : {1, 3, 8, 15, 64}) {
      for (const std::int64_t n : {1, 16, 40, 64}) {
        for (const std::int64_t k : {1, 2, 17, 64}) {
          at::Tensor a = at::randn({m, k}), b = at::randn({k, n}), c = at::randn({m, padded(n)});
          if (products == Products::kBFloat16) {
            a = a.to(at::kBFloat16).to(at::kFloat);
            b = b.to(at::kBFloat16).to(at::kFloat);
          }
          const at::Tensor right = pad_columns(b), a_transposed = a.t().contiguous();
          const at::Tensor expected = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
          // Rows that lie 16 apart, as decode has the features of heads that share a state.
          at::Tensor apart = at::randn({k, m, padded(1)});
          apart.select(2, 0).copy_(a_transposed);
          const Left ways[] = {as_stored(a.data_ptr<float>(), k),
                               transposed(a_transposed.data_ptr<float>(), m),
                               {apart.data_ptr<float>(), padded(1), m * padded(1)}};
          for (const Left& left : ways) {
            for (const bool add : {false, true}) {
              at::Tensor found = c.clone();
              multiply(products,
                       {m, n, k},
                       left,
                       {right.data_ptr<float>(), padded(n)},
                       found.data_ptr<float>(),
                       padded(n),
                       add);
              const at::Tensor target = add ? expected + c.narrow(1, 0, n) : expected;
              EXPECT_LT((found.narrow(1, 0, n) - target).abs().max().item<double>(),
                        1e-5 * static_cast<double>(k))
                  << m << " x " << n << " x " << k << " strides " << left.row_stride << " "
                  << left.col_stride << " add " << add << " products "
                  << static_cast<int>(products);
            }
          }
        }
      }
    }
  }
}

TEST(TileTranspose, TransposesAnyShapeAndZeroesItsPadding) {
  for (const std::int64_t rows : {1, 15, 16, 17, 64}) {
    for (const std::int64_t cols : {1, 16, 24, 64}) {
      const at::Tensor in = at::randn({rows, cols});
      const at::Tensor out = at::full({cols, padded(rows)}, 7.0F);
      transpose(in.data_ptr<float>(), cols, rows, cols, out.data_ptr<float>(), padded(rows));
      EXPECT_TRUE(at::equal(out, pad_columns(in.t()))) << rows << " x " << cols;
    }
  }
}

TEST(TileRows, RoundToBfloat16AsLibTorchDoes) {
  at::Tensor x = at::randn({5, 40}) * 1e3;
  x[0][0] = NAN;
  x[1][1] = INFINITY;
  x[2][2] = 1.00390625F;  // half way between two bf16 values: the even one
  const at::Tensor out = at::empty({5, 40}, at::kBFloat16);
  narrow_rows(x.data_ptr<float>(), 40, 5, 40, nullptr, out.data_ptr(), at::kBFloat16, 40);
  const at::Tensor expected = x.to(at::kBFloat16);
  EXPECT_TRUE(at::equal(out.nan_to_num(), expected.nan_to_num()));
  EXPECT_TRUE(at::equal(out.isnan(), expected.isnan()));
  const at::Tensor back = at::empty({5, 48});
  widen_rows(out.data_ptr(), at::kBFloat16, 40, 5, 40, back.data_ptr<float>(), 48);
  EXPECT_TRUE(at::equal(back.narrow(1, 0, 40).nan_to_num(), expected.to(at::kFloat).nan_to_num()));
  EXPECT_EQ(back.narrow(1, 40, 8).abs().max().item<float>(), 0.0F);
}

// The vector exponential over its whole domain, through the only function that has it.
TEST(TileWeights, ExponentialIsWithinTwoUnitsAndExactAtItsEnds) {
  const std::int64_t keys = 4096;
  at::Tensor scores = at::zeros({keys, 16});
  scores.copy_((at::arange(keys).to(at::kDouble) * (-110.0 / static_cast<double>(keys)))
                   .unsqueeze(1)
                   .expand({keys, 16}));
  const at::Tensor exact = at::exp(scores.to(at::kDouble)), weights = at::empty_like(scores);
  at::Tensor maxima = at::empty({16}), sums = at::empty({16});
  const at::Tensor gates = at::ones({16});
  window_weights(scores.data_ptr<float>(),
                 16,
                 keys,
                 16,
                 {0, 0, -kNoLag, kNoLag},
                 1.0F,
                 gates.data_ptr<float>(),
                 weights.data_ptr<float>(),
                 maxima.data_ptr<float>(),
                 sums.data_ptr<float>());
  EXPECT_EQ(weights[0][0].item<float>(), 1.0F);
  EXPECT_EQ(weights[keys - 1][0].item<float>(), 0.0F);
  const at::Tensor error = ((weights.to(at::kDouble) - exact).abs() - 2.4e-7 * exact).max();
  EXPECT_LT(error.item<double>(), 1.5e-38) << "beyond 2 units in the last place";
}

}  // namespace
}  // namespace hedgerow::kernels::cpu
