// Whether a recorded step gives the bytes of its launches, part by part: what must hold before
// generation may record its steps (GenerateOptions::records_steps). Needs a GPU.
#include "worker/device/step_graph.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "tests/support/other_device.hpp"
#include "worker/model/layer/mlp.hpp"

namespace hedgerow::worker {
namespace {

class StepGraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!tests::why_no_other_device().empty()) GTEST_SKIP() << tests::why_no_other_device();
    device_ = tests::other_device();
    at::manual_seed(2);
  }

  [[nodiscard]] at::Tensor draw(at::IntArrayRef sizes) const {
    return at::randn(sizes, at::TensorOptions(device_).dtype(at::kBFloat16));
  }

  template <typename Step>
  void expect_equal(const Step& step, const std::string& what) const {
    const c10::NoGradGuard no_grad;
    const at::Tensor launched = step();
    at::Tensor recorded;
    const auto graph = record_step(device_, [&] { recorded = step(); });
    ASSERT_NE(graph, nullptr);
    for (int i = 0; i < 2; ++i) {
      graph->replay();
      EXPECT_TRUE(at::equal(recorded, launched))
          << what << ", replay " << i << ": largest difference "
          << (recorded.to(at::kFloat) - launched.to(at::kFloat)).abs().max().item<float>();
    }
  }

  at::Device device_ = at::kCPU;
};

TEST_F(StepGraphTest, OfAProductGivesTheBytesOfItsLaunch) {
  struct Size {
    std::int64_t in, out;
  };
  for (const Size& size :
       {Size{4096, 6144}, Size{4096, 4096}, Size{4096, 28672}, Size{14336, 4096}}) {
    const at::Tensor weight = draw({size.out, size.in});
    for (const std::int64_t rows : {1, 2, 8, 64, 256}) {
      const at::Tensor x = draw({1, rows, size.in});
      expect_equal([&] { return at::linear(x, weight); },
                   std::to_string(rows) + " rows, " + std::to_string(size.in) + " to " +
                       std::to_string(size.out));
    }
  }
}

TEST_F(StepGraphTest, OfElementWisePassesGivesTheBytesOfTheirLaunches) {
  const at::Tensor x = draw({1, 3, 4096}), gate_up = draw({1, 3, 8192});
  const at::Tensor weight = at::ones({4096}, at::TensorOptions(device_).dtype(at::kFloat));
  expect_equal([&] { return rms_norm(x, weight, 1e-5); }, "norm");
  expect_equal([&] { return swiglu(gate_up); }, "SwiGLU");
  expect_equal([&] { return add_round(x, x, at::kBFloat16); }, "sum");
}

}  // namespace
}  // namespace hedgerow::worker
