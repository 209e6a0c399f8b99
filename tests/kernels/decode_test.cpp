#include "kernels/decode.hpp"

#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::make_inputs;

at::Tensor token(const at::Tensor& x, std::int64_t t) { return x.select(2, t); }

class Decode : public ::testing::TestWithParam<WindowLayout> {};

TEST_P(Decode, GivesARowOfARaggedBatchWhatItGivesAlone) {
  AttentionCase shape{.B = 3, .H = 4, .G = 2, .T = 40, .D = 16, .f = 8};
  shape.options.window = GetParam();
  shape.options.window_size = 8;
  const AttentionInputs inputs = make_inputs(shape);
  const std::vector<std::int64_t> lengths = {5, 31, 17};
  const at::Tensor counts = at::tensor(lengths);
  // The padding holds what a careless reader would trip over.
  at::Tensor k = inputs.k.clone(), v = inputs.v.clone();
  for (std::int64_t b = 0; b < 3; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    k[b].narrow(1, length, shape.T - length).fill_(NAN);
    v[b].narrow(1, length, shape.T - length).fill_(NAN);
  }
  DecodeState together = prefill_state(k, v, counts, inputs.parameters, shape.options);
  for (std::int64_t step = 0; step < 9; ++step) {
    const at::Tensor y = decode_step(token(inputs.q, step),
                                     token(inputs.k, step),
                                     token(inputs.v, step),
                                     together,
                                     inputs.parameters,
                                     shape.options);
    for (std::int64_t b = 0; b < 3; ++b) {
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      DecodeState alone = prefill_state(inputs.k.narrow(0, b, 1).narrow(2, 0, length),
                                        inputs.v.narrow(0, b, 1).narrow(2, 0, length),
                                        at::full({1}, length, at::kLong),
                                        inputs.parameters,
                                        shape.options);
      at::Tensor single;
      for (std::int64_t t = 0; t <= step; ++t) {
        single = decode_step(token(inputs.q, t).narrow(0, b, 1),
                             token(inputs.k, t).narrow(0, b, 1),
                             token(inputs.v, t).narrow(0, b, 1),
                             alone,
                             inputs.parameters,
                             shape.options);
      }
      EXPECT_TRUE(at::equal(y[b], single[0])) << shape.name() << ", row " << b << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         Decode,
                         ::testing::Values(WindowLayout::kSliding,
                                           WindowLayout::kTerraced,
                                           WindowLayout::kNone));

TEST(DecodeErrors, NameTheArgumentAndBothValues) {
  AttentionCase shape;
  const AttentionInputs inputs = make_inputs(shape);
  EXPECT_THAT(
      [&] {
        prefill_state(inputs.k, inputs.v, at::tensor({3L, 66L}), inputs.parameters, shape.options);
      },
      ::testing::ThrowsMessage<c10::Error>(
          ::testing::HasSubstr("lengths must lie in 1..65, found 3..66")));
  DecodeState state =
      prefill_state(inputs.k, inputs.v, at::tensor({3L, 65L}), inputs.parameters, shape.options);
  const auto step = [&](const AttentionInputs& x, const HybridOptions& options) {
    return decode_step(token(x.q, 0), token(x.k, 0), token(x.v, 0), state, x.parameters, options);
  };
  EXPECT_THAT([&] { step(inputs.as(at::kBFloat16, at::kFloat), shape.options); },
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("q must have the state's dtype Float, found BFloat16")));
  EXPECT_THAT(
      [&] {
        prefill_state(inputs.k.to(at::kDouble),
                      inputs.v.to(at::kDouble),
                      at::tensor({3L, 65L}),
                      inputs.parameters,
                      shape.options);
      },
      ::testing::ThrowsMessage<c10::Error>(
          ::testing::HasSubstr("k must be float32 or bfloat16, found Double")));
  HybridOptions sliding = shape.options;
  sliding.window = WindowLayout::kSliding;
  EXPECT_THAT(
      [&] { step(inputs, sliding); },
      ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(
          "window_k and window_v must be contiguous [2, 2, 64, 16], found [2, 2, 128, 16]")));
  state.positions = state.positions.to(at::kMeta);
  EXPECT_THAT([&] { step(inputs, shape.options); },
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("positions must be on q's device cpu, found meta")));
}

}  // namespace
}  // namespace hedgerow::kernels
