// The cap on the linear branch's keys against its definition: phi_q of a query with n linear keys
// times min(1, cap / n). Catches: a gain of the wrong query in a tile, a sink counted among the
// keys, a backward or a decoder that knows no cap.
#include <gmock/gmock.h>

#include <functional>

#include "kernels/decode.hpp"
#include "kernels/hybrid_attention.hpp"
#include "kernels/reference.hpp"
#include "kernels/transfer_loss.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::differentiate;
using testing::make_inputs;

constexpr std::int64_t kCapWindow = 16;

void for_each_capped_case(const std::function<void(const AttentionCase&)>& visit) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const std::int64_t T : {1, 33, 49, 100, 1300}) {  // 1300: two segments
      for (const std::int64_t cap : {1, 20, 400}) {
        AttentionCase shape{.B = T > 1000 ? 1 : 2, .T = T, .bias = true};
        shape.shares_key_maps = cap == 20;
        shape.options.window = layout;
        shape.options.window_size = kCapWindow;
        shape.options.num_sinks = cap == 1 ? 0 : 4;
        shape.options.linear_cap = cap;
        visit(shape);
      }
    }
  }
}

TEST(LinearCap, ScalesTheWeightsOfAQuerysLinearKeysByCapOverTheirNumber) {
  for_each_capped_case([](const AttentionCase& shape) {
    if (shape.T > 1000) return;
    const AttentionInputs x = make_inputs(shape).as(at::kDouble, at::kDouble);
    HybridOptions without = shape.options;
    without.linear_cap = 0;
    const HybridWeights weights = hybrid_weights_reference(x.q, x.k, {}, x.parameters, without);
    const at::Tensor keys = weights.linear.ne(0).sum(-1, true);
    const at::Tensor share = (shape.options.linear_cap / keys.to(at::kDouble)).clamp_max(1.0);
    const at::Tensor all = weights.window + weights.linear * share;
    const at::Tensor expected =
        at::matmul(all / all.sum(-1, true), x.v.repeat_interleave(shape.H / shape.G, 1));
    const at::Tensor found = hybrid_attention_reference(x.q, x.k, x.v, x.parameters, shape.options);
    EXPECT_TRUE(at::allclose(found, expected, 1e-10, 1e-12)) << shape.name();
  });
}

TEST(LinearCap, HybridEqualsTheReferenceInValueAndEveryGradient) {
  for_each_capped_case([](const AttentionCase& shape) {
    const AttentionInputs inputs = make_inputs(shape);
    testing::expect_entry_outcome(shape,
                                  testing::hybrid_outcome(shape, inputs),
                                  testing::plain_hybrid_outcome(shape, inputs),
                                  testing::reference_outcome(shape, inputs, at::kDouble));
  });
}

TEST(LinearCap, HybridOfTheAtenBackendEqualsTheReferenceInValueAndEveryGradient) {
  for_each_capped_case([](const AttentionCase& shape) {
    const AttentionInputs inputs = make_inputs(shape);
    testing::expect_entry_outcome(
        shape,
        differentiate(
            [&](const AttentionInputs& x) {
              return hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, Backend::kAten);
            },
            inputs.as(shape.dtype, at::kFloat)),
        testing::plain_hybrid_outcome(shape, inputs),
        testing::reference_outcome(shape, inputs, at::kDouble));
  });
}

TEST(LinearCap, CrossEntropyEqualsTheReferenceInValueAndEveryGradientInBothBackends) {
  for (const Backend backend : {Backend::kCpu, Backend::kAten}) {
    for_each_capped_case([backend](const AttentionCase& shape) {
      if (shape.T > 1000) return;
      const AttentionInputs inputs = make_inputs(shape);
      const auto loss = [&](const AttentionInputs& x) {
        return transfer_cross_entropy(x.q, x.k, x.parameters, shape.options, backend);
      };
      const auto reference = [&](const AttentionInputs& x) {
        return transfer_cross_entropy_reference(
            x.q.detach(), x.k.detach(), x.parameters, shape.options);
      };
      testing::expect_entry_outcome(shape,
                                    differentiate(loss, inputs.as(shape.dtype, at::kFloat)),
                                    testing::plain_cross_entropy_outcome(shape, inputs),
                                    differentiate(reference, inputs.as(at::kDouble, at::kDouble)));
    });
  }
}

TEST(LinearCap, PrefillAndStepsOfBothBackendsGiveWhatTheWholeSequenceGives) {
  for_each_capped_case([](const AttentionCase& shape) {
    if (shape.T > 1000) return;
    const AttentionInputs inputs = make_inputs(shape);
    const at::Tensor whole =
        hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
    for (const Backend backend : {Backend::kCpu, Backend::kAten}) {
      const std::int64_t length = std::max<std::int64_t>(1, shape.T / 2);
      DecodeState state = prefill_state(inputs.k.narrow(2, 0, length),
                                        inputs.v.narrow(2, 0, length),
                                        at::full({shape.B}, length, at::kLong),
                                        inputs.parameters,
                                        shape.options,
                                        backend);
      for (std::int64_t t = length; t < shape.T; ++t) {
        const at::Tensor y = decode_step(inputs.q.select(2, t),
                                         inputs.k.select(2, t),
                                         inputs.v.select(2, t),
                                         state,
                                         inputs.parameters,
                                         shape.options,
                                         backend);
        ASSERT_TRUE(at::allclose(y, whole.select(2, t), 1e-4, 1e-5))
            << shape.name() << ", token " << t;
      }
    }
  });
}

TEST(LinearCap, IsRefusedBelowZeroAndWithoutAWindow) {
  AttentionCase shape;
  const AttentionInputs inputs = make_inputs(shape);
  const auto attend = [&] {
    hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
  };
  shape.options.linear_cap = -1;
  EXPECT_THAT(attend,
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("attention.linear_cap = -1: expected 0 to 1048576")));
  shape.options.linear_cap = 9;
  shape.options.window = WindowLayout::kNone;
  EXPECT_THAT(attend,
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr(
                  "attention.linear_cap = 9: the cap weighs the linear branch against a window, "
                  "and attention.window is none; use 0")));
}

}  // namespace
}  // namespace hedgerow::kernels
