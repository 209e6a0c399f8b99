// The fused CUDA kernels of worker/model/layer beside
// their plain forms, in bf16: emulated on the CPU, and on a GPU where there is one.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "kernels/cuda/elementwise_cuda.hpp"
#include "worker/finetune/token_loss.hpp"
#include "worker/model/layer/mlp.hpp"
#include "worker/model/layer/rotary.hpp"

namespace hedgerow::worker {
namespace {

#if defined(HEDGEROW_EMULATED_TESTS)
constexpr at::DeviceType kDevice = at::kCPU;
#else
constexpr at::DeviceType kDevice = at::kCUDA;
#endif

class FusedElementwise : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_ = kernels::cuda::elementwise_backend();
    if (cuda_ == nullptr) GTEST_SKIP() << "built without CUDA";
    if (kDevice == at::kCUDA && !at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
    at::manual_seed(3);
  }

  static at::Tensor draw(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) {
    return at::randn(sizes, at::TensorOptions(dtype)).to(kDevice);
  }

  // Two fp32 computations rounded once: the last bit of bf16 may differ, and no more.
  static void expect_close(const at::Tensor& found, const at::Tensor& expected, const char* what) {
    ASSERT_EQ(found.sizes(), expected.sizes()) << what;
    ASSERT_EQ(found.scalar_type(), at::kBFloat16) << what;
    const at::Tensor a = found.to(at::kDouble), b = expected.to(at::kDouble);
    const double worst = ((a - b).abs() / (b.abs() + 1e-2)).max().item<double>();
    EXPECT_LT(worst, 1.0 / 128) << what;
    // Most are the same bits: a wrong element would hide in no tolerance.
    EXPECT_GT((a == b).to(at::kDouble).mean().item<double>(), 0.97) << what;
  }

  const kernels::cuda::ElementwiseBackend* cuda_ = nullptr;
};

TEST_F(FusedElementwise, NormsRowsOfAnyWidthAndAddsBeforeInTheSamePass) {
  for (const std::int64_t columns : {8, 64, 576, 4096, 4104}) {
    const at::Tensor x = draw({2, 3, columns}), update = draw({2, 3, columns});
    const at::Tensor weight = draw({columns}, at::kFloat);
    expect_close(cuda_->rms_norm(x, weight, 1e-5), plain_rms_norm(x, weight, 1e-5), "norm");
    const auto [sum, normed] = cuda_->add_rms_norm(x, update, weight, 1e-5);
    EXPECT_TRUE(at::equal(sum, x + update)) << columns << ": rounded once, as ATen does";
    expect_close(normed, plain_rms_norm(x + update, weight, 1e-5), "norm of a sum");
  }
}

TEST_F(FusedElementwise, DifferentiatesANormWithAndWithoutALowRankPart) {
  for (const std::int64_t columns : {64, 576, 4096}) {
    const at::Tensor x = draw({1, 5, columns}), dy = draw({1, 5, columns});
    const at::Tensor residual = draw({1, 5, columns}), weight = draw({columns}, at::kFloat);
    for (const at::Tensor& low_rank : {at::Tensor(), draw({5, columns}, at::kFloat)}) {
      expect_close(cuda_->rms_norm_backward(residual, dy, low_rank, x, weight, 1e-5),
                   plain_rms_norm_backward(residual, dy, low_rank, x, weight, 1e-5),
                   low_rank.defined() ? "with low rank" : "without");
    }
  }
}

TEST_F(FusedElementwise, GatesAndDifferentiatesTheGate) {
  for (const std::int64_t columns : {8, 1536, 2056}) {
    const at::Tensor gate_up = draw({2, 3, 2 * columns}) * 4, dy = draw({2, 3, columns});
    expect_close(cuda_->swiglu(gate_up), plain_swiglu(gate_up), "gate");
    expect_close(cuda_->swiglu_backward(dy, gate_up), plain_swiglu_backward(dy, gate_up), "dgate");
  }
  const at::Tensor far = at::tensor({-300.0F, 300.0F}).repeat({1, 1, 8}).to(at::kBFloat16);
  const at::Tensor extreme = at::cat({far, at::ones_like(far)}, -1).to(kDevice);
  EXPECT_TRUE(at::equal(cuda_->swiglu(extreme), plain_swiglu(extreme))) << "0 and 300, no NaN";
}

TEST_F(FusedElementwise, SplitsTurnsAndNormsHeadsAndTurnsGradientsBack) {
  struct Case {
    std::int64_t H, G, D;
    bool norms;
  };
  for (const Case& heads : {Case{9, 3, 64, false},
                            Case{4, 1, 128, true},
                            Case{2, 2, 16, true},
                            Case{32, 8, 128, false},
                            Case{1, 1, 256, true}}) {
    const std::int64_t B = 2, T = 5, packed = (heads.H + 2 * heads.G) * heads.D;
    const at::Tensor qkv = draw({B, T, packed});
    const at::Tensor angles = draw({T, heads.D / 2}, at::kFloat).repeat({1, 2});
    const at::Tensor cos = angles.cos(), sin = angles.sin();
    HeadNorms norms;
    if (heads.norms) norms = {draw({heads.D}, at::kFloat), draw({heads.D}, at::kFloat), 1e-6};
    ASSERT_TRUE(cuda_->takes_heads(qkv, heads.D));
    const kernels::cuda::HeadLayout layout{heads.H, heads.G, cos, sin, norms.q, norms.k, norms.eps};
    const auto found = cuda_->split_heads(qkv, layout);
    const Qkv expected = plain_split_heads(qkv, heads.H, heads.G, {cos, sin}, norms);
    expect_close(found[0], expected.q, "q");
    expect_close(found[1], expected.k, "k");
    EXPECT_TRUE(at::equal(found[2], expected.v));
    const Qkv gradient{
        draw(expected.q.sizes()), draw(expected.k.sizes()), draw(expected.v.sizes())};
    expect_close(cuda_->split_heads_backward({gradient.q, gradient.k, gradient.v}, qkv, layout),
                 plain_split_heads_backward(gradient, qkv, {cos, sin}, norms),
                 heads.norms ? "dqkv through norms" : "dqkv");
  }
}

// Blocks of any k run the same rows in other company.
TEST_F(FusedElementwise, GivesARowItsBytesWhateverElseIsInTheBatch) {
  const at::Tensor x = draw({7, 640}), weight = draw({640}, at::kFloat);
  const at::Tensor all = cuda_->rms_norm(x, weight, 1e-5);
  for (std::int64_t row = 0; row < 7; ++row)
    EXPECT_TRUE(at::equal(cuda_->rms_norm(x.narrow(0, row, 1), weight, 1e-5)[0], all[row]));
}

TEST_F(FusedElementwise, TakesWhatItsAccessesFitAndNothingElse) {
  EXPECT_FALSE(cuda_->takes(draw({2, 12})));
  EXPECT_FALSE(cuda_->takes(draw({2, 16}, at::kFloat)));
  EXPECT_FALSE(cuda_->takes_heads(draw({1, 2, 240}), 80));
  const at::Tensor shifted = draw({1 + 4 * 64}).narrow(0, 1, 4 * 64).view({4, 64});
  const at::Tensor weight = draw({64}, at::kFloat);
  EXPECT_TRUE(at::equal(cuda_->rms_norm(shifted, weight, 1e-5),
                        cuda_->rms_norm(shifted.clone(), weight, 1e-5)));
}

}  // namespace
}  // namespace hedgerow::worker
