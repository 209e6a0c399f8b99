#include "kernels/decode.hpp"

#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::make_inputs;

at::Tensor token(const at::Tensor& x, std::int64_t t) { return x.select(2, t); }

// Prefill of the first `split` tokens, then one step a token: rows split.. of the output.
at::Tensor decode_from(const AttentionInputs& x, const HybridOptions& options, std::int64_t split) {
  const std::int64_t B = x.q.size(0), T = x.q.size(2);
  DecodeState state;
  if (split == 0) {
    state = make_decode_state(B,
                              x.q.size(1),
                              x.k.size(1),
                              x.q.size(3),
                              feature_dim(x.parameters.k, options.feature_map, x.q.size(3)),
                              x.q.scalar_type(),
                              x.q.device(),
                              options);
  } else {
    state = prefill_state(x.k.narrow(2, 0, split),
                          x.v.narrow(2, 0, split),
                          at::full({B}, split, at::kLong),
                          x.parameters,
                          options);
  }
  std::vector<at::Tensor> rows;
  for (std::int64_t t = split; t < T; ++t) {
    rows.push_back(
        decode_step(token(x.q, t), token(x.k, t), token(x.v, t), state, x.parameters, options));
  }
  return at::stack(rows, 2);
}

class Decode : public ::testing::TestWithParam<WindowLayout> {};

TEST_P(Decode, ContinuesThePrefillFromAnySplitAsTheFullForward) {
  AttentionCase shape{.B = 2, .H = 6, .G = 2, .T = 37, .D = 24, .f = 8};
  shape.options.layout = GetParam();
  shape.options.window_size = 8;
  const AttentionInputs inputs = make_inputs(shape);
  const at::Tensor full =
      hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
  for (const std::int64_t split : {0, 1, 7, 8, 9, 15, 16, 17, 24, 30, 36}) {
    const at::Tensor rows = decode_from(inputs, shape.options, split);
    const double error = (rows - full.narrow(2, split, shape.T - split)).abs().max().item<double>();
    EXPECT_LE(error, 1e-5) << shape.name() << ", split at " << split;
  }
}

TEST_P(Decode, OfBfloat16StaysWithinTwiceThePlainError) {
  AttentionCase shape{.B = 1, .H = 4, .G = 1, .T = 70, .D = 64, .f = 32, .dtype = at::kBFloat16};
  shape.options.layout = GetParam();
  shape.options.window_size = 16;
  const AttentionInputs inputs = make_inputs(shape);
  const AttentionInputs doubles = inputs.as(at::kDouble, at::kDouble);
  const at::Tensor exact =
      hybrid_attention_reference(doubles.q, doubles.k, doubles.v, doubles.parameters, shape.options)
          .detach();
  const at::Tensor plain =
      hybrid_attention_reference(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
  testing::expect_within_twice(decode_from(inputs, shape.options, 33),
                               plain.narrow(2, 33, 37),
                               exact.narrow(2, 33, 37),
                               shape.name());
}

TEST_P(Decode, GivesARowOfARaggedBatchWhatItGivesAlone) {
  AttentionCase shape{.B = 3, .H = 4, .G = 2, .T = 40, .D = 16, .f = 8};
  shape.options.layout = GetParam();
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
  EXPECT_THAT(
      [&] {
        decode_step(token(inputs.q, 0).to(at::kBFloat16),
                    token(inputs.k, 0).to(at::kBFloat16),
                    token(inputs.v, 0).to(at::kBFloat16),
                    state,
                    inputs.parameters,
                    shape.options);
      },
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
  sliding.layout = WindowLayout::kSliding;
  EXPECT_THAT(
      [&] {
        decode_step(token(inputs.q, 0),
                    token(inputs.k, 0),
                    token(inputs.v, 0),
                    state,
                    inputs.parameters,
                    sliding);
      },
      ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(
          "window_k and window_v must be contiguous [2, 2, 64, 16], found [2, 2, 128, 16]")));
  state.positions = state.positions.to(at::kMeta);
  EXPECT_THAT(
      [&] {
        decode_step(token(inputs.q, 0),
                    token(inputs.k, 0),
                    token(inputs.v, 0),
                    state,
                    inputs.parameters,
                    shape.options);
      },
      ::testing::ThrowsMessage<c10::Error>(
          ::testing::HasSubstr("positions must be on q's device cpu, found meta")));
}

}  // namespace
}  // namespace hedgerow::kernels
