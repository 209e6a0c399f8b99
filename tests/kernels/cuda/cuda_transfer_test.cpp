// The fused CUDA teacher and attention transfer.
#include <c10/core/GradMode.h>

#include "tests/kernels/cuda/cuda_backend.hpp"

namespace hedgerow::kernels::testing {
namespace {

Programs softmax_programs() {
  const auto reference = [](const AttentionInputs& x) {
    return softmax_attention_reference(x.q, x.k, x.v);
  };
  return {
      .ours =
          [](const AttentionInputs& x) { return softmax_attention(x.q, x.k, x.v, Backend::kCuda); },
      .plain = reference,
      .exact = reference};
}

void expect_softmax(const AttentionCase& shape, at::DeviceType device) {
  const c10::NoGradGuard no_grad;
  const AttentionInputs inputs = make_bfloat16_inputs(shape);
  const Programs programs = softmax_programs();
  expect_within_twice(programs.ours(inputs.as(at::kBFloat16, at::kFloat, device)).cpu(),
                      programs.plain(inputs.as(at::kBFloat16, at::kFloat)),
                      programs.exact(inputs.as(at::kDouble, at::kDouble)),
                      shape.name());
}

// The loss; T x T where plain.
Programs transfer_programs(const AttentionCase& shape) {
  const HybridOptions options = shape.options;
  const auto square = [](const at::Tensor& y, const at::Tensor& y_true, at::ScalarType dtype) {
    return (y.to(dtype) - y_true.detach().to(dtype)).square().mean();
  };
  return {
      .ours =
          [options](const AttentionInputs& x) {
            return attention_transfer(x.q, x.k, x.v, x.parameters, options, Backend::kCuda).loss;
          },
      .plain =
          [options, square](AttentionInputs x) {
            x.q = x.q.detach(), x.k = x.k.detach(), x.v = x.v.detach();
            return square(plain_bfloat16_hybrid(x, options),
                          softmax_attention_reference(x.q, x.k, x.v),
                          at::kFloat);
          },
      .exact =
          [options, square](AttentionInputs x) {
            x.q = x.q.detach(), x.k = x.k.detach(), x.v = x.v.detach();
            return square(hybrid_attention_reference(x.q, x.k, x.v, x.parameters, options),
                          softmax_attention_reference(x.q, x.k, x.v),
                          at::kDouble);
          }};
}

TEST_P(CudaTransfer, TeacherStaysWithinTwiceThePlainErrorAtAnyLengthAndGroup) {
  for (const std::int64_t T : {1, 63, 64, 65, 127, 128, 200}) {
    AttentionCase shape = small(WindowLayout::kNone, T);
    expect_softmax(shape, GetParam());
    shape.H = 3;
    shape.G = T == 65 ? 3 : 1;
    shape.D = 128;
    shape.B = 2;
    expect_softmax(shape, GetParam());
  }
}

TEST_P(CudaTransfer, TeacherHoldsAtExtremeLogits) {
  AttentionCase shape = small(WindowLayout::kNone, 200);
  shape.scale = 6.0;
  expect_softmax(shape, GetParam());
}

TEST_P(CudaTransfer, StaysWithinTwiceThePlainErrorAtAnyLength) {
  expect_lengths(transfer_programs, {1, 63, 64, 65, 127, 128, 200, 330});
}

TEST_P(CudaTransfer, StaysWithinTwiceThePlainErrorForHeadDimsColumnsAndGroups) {
  expect_sizes(transfer_programs);
}

TEST_P(CudaTransfer, StaysWithinTwiceThePlainErrorInSegments) {
  expect_segments(transfer_programs);
}

TEST_P(CudaTransfer, StaysWithinTwiceThePlainErrorForEveryMap) { expect_maps(transfer_programs); }

TEST_P(CudaTransfer, StaysWithinTwiceThePlainErrorForKeyMapsOfKvHeads) {
  expect_shared_key_maps(transfer_programs);
}

TEST_P(CudaTransfer, StaysWithinTwiceThePlainErrorWithSinks) { expect_sinks(transfer_programs); }

TEST_P(CudaTransfer, GivesNoGradientToWindowFactorsThatNoWindowReads) {
  expect_unread_window_factors(transfer_programs);
}

TEST_P(CudaTransfer, HoldsAtExtremeLogits) { expect_extreme_logits(transfer_programs); }

TEST_P(CudaTransfer, TeacherIsCausalBitForBit) {
  const c10::NoGradGuard no_grad;
  const AttentionCase shape = small(WindowLayout::kNone, 200);
  const AttentionInputs x = make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat, GetParam());
  expect_causal(shape,
                x,
                {1, 63, 64, 130, 199},
                [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
                  return softmax_attention(q, k, v, Backend::kCuda);
                });
}

// Where the window ends inside a tile the teacher walks its keys again.
TEST_P(CudaTransfer, StaysWithinTwiceThePlainErrorForAnyWindow) {
  expect_windows(transfer_programs, 330, {5, 96, 128});
}

// Blocks of any k are trained on the same bits only if capture and transfer have one teacher.
TEST_P(CudaTransfer, GivesTheTeachersBytesOfEachSequenceAlone) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kWindowLayouts) {
    AttentionCase shape = small(layout, 330);
    shape.B = 2;
    for (const std::int64_t window : {64, 20, 128}) {
      shape.options.window_size = window;
      shape.options.num_sinks = layout == WindowLayout::kNone || window == 20 ? 0 : 4;
      const AttentionInputs x =
          make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat, GetParam());
      const at::Tensor y =
          attention_transfer(x.q, x.k, x.v, x.parameters, shape.options, Backend::kCuda).y_true;
      for (std::int64_t b = 0; b < shape.B; ++b) {
        const auto row = [b](const at::Tensor& value) { return value.narrow(0, b, 1); };
        EXPECT_TRUE(
            at::equal(row(y), softmax_attention(row(x.q), row(x.k), row(x.v), Backend::kCuda)))
            << shape.name() << ", sequence " << b;
      }
    }
  }
}

TEST_P(CudaTransfer, GivesTheSameBytesFromRunToRunAndScalesItsGradientsByWhatComesBack) {
  for (const WindowLayout layout : kWindowLayouts) {
    const AttentionCase shape = small(layout, 330);
    const AttentionInputs inputs = make_bfloat16_inputs(shape);
    const auto run = [&](double scale) {
      return differentiate(
          [&](const AttentionInputs& x) { return transfer_programs(shape).ours(x) * scale; },
          inputs.as(at::kBFloat16, at::kFloat, GetParam()));
    };
    const Outcome one = run(1.0), again = run(1.0), scaled = run(4.0);
    EXPECT_TRUE(at::equal(one.value, again.value)) << shape.name();
    for (std::size_t i = 3; i < kLeafNames.size(); ++i) {
      if (one.gradients[i].defined()) {
        EXPECT_TRUE(at::equal(one.gradients[i], again.gradients[i]))
            << shape.name() << ", d" << kLeafNames[i];
        EXPECT_TRUE(at::equal(one.gradients[i] * 4.0, scaled.gradients[i]))
            << shape.name() << ", d" << kLeafNames[i];
      }
    }
    const c10::NoGradGuard no_grad;
    const at::Tensor without =
        transfer_programs(shape).ours(inputs.as(at::kBFloat16, at::kFloat, GetParam()));
    EXPECT_EQ(without.item<double>(), one.value.item<double>()) << shape.name();
  }
}

TEST_P(CudaTransfer, PropagatesNanToTheLossAndToTheTeachersLaterTokensOnly) {
  const AttentionCase shape = small(WindowLayout::kTerraced, 200);
  AttentionInputs inputs = make_bfloat16_inputs(shape);
  inputs.v.select(2, 70).fill_(NAN);
  const AttentionInputs x = inputs.as(at::kBFloat16, at::kFloat, GetParam());
  const AttentionTransfer found =
      attention_transfer(x.q, x.k, x.v, x.parameters, shape.options, Backend::kCuda);
  EXPECT_TRUE(std::isnan(found.loss.item<double>()));
  const at::Tensor nan = found.y_true.cpu().isnan();
  EXPECT_TRUE(nan.narrow(2, 70, 130).all().item<bool>());
  EXPECT_FALSE(nan.narrow(2, 0, 64).any().item<bool>());
}

// The most that CUDA knows of grid.y is 65,535.
TEST_P(CudaTransfer, SaysThatABatchHasTooManyHeads) {
  AttentionCase shape = small(WindowLayout::kTerraced, 1);
  shape.B = 32768;
  const AttentionInputs x = make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat, GetParam());
  const auto names_the_limit = ::testing::HasSubstr("65535 heads of a batch");
  EXPECT_THAT(refusal([&] { softmax_attention(x.q, x.k, x.v, Backend::kCuda); }), names_the_limit);
  EXPECT_THAT(refusal([&] {
                attention_transfer(x.q, x.k, x.v, x.parameters, shape.options, Backend::kCuda);
              }),
              names_the_limit);
}

TEST_P(CudaTransfer, SaysInOneSentenceWhatItDoesNotTake) {
  AttentionCase shape = small(WindowLayout::kTerraced, 80);
  shape.D = 32;
  const AttentionInputs x = make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat, GetParam());
  EXPECT_THAT(refusal([&] { softmax_attention(x.q, x.k, x.v, Backend::kCuda); }),
              ::testing::HasSubstr("head_dim 64 and 128, not 32"));
  EXPECT_THAT(refusal([&] {
                attention_transfer(x.q, x.k, x.v, x.parameters, shape.options, Backend::kCuda);
              }),
              ::testing::HasSubstr("head_dim 32"));
}

}  // namespace
}  // namespace hedgerow::kernels::testing
