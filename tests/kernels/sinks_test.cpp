// Sinks, and key maps of kv heads, against the definition: whatever T, W and their number are.
// Catches: a sink in both branches or in none, a sink's value lost between window and state, a
// state that differs between the query heads that share its map, a gradient of a shared map that
// misses a query head.
#include <gmock/gmock.h>

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

constexpr std::int64_t kWindow = 16;

// Layouts, lengths around every border, 0 to all of the window as sinks, maps of query or kv heads.
void for_each_case(const std::function<void(const AttentionCase&)>& visit) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const std::int64_t T : {1, 3, 15, 16, 17, 33, 49, 100}) {
      for (const std::int64_t num_sinks : {0, 1, 4, 16}) {
        for (const bool shares : {false, true}) {
          if (num_sinks == 0 && !shares) continue;  // hybrid_attention_test.cpp
          AttentionCase shape{.T = T, .bias = true, .shares_key_maps = shares};
          shape.options.window = layout;
          shape.options.window_size = kWindow;
          shape.options.num_sinks = num_sinks;
          visit(shape);
        }
      }
    }
  }
}

void expect_hybrid(const AttentionCase& shape) {
  const AttentionInputs inputs = make_inputs(shape);
  testing::expect_entry_outcome(shape,
                                testing::hybrid_outcome(shape, inputs),
                                testing::plain_hybrid_outcome(shape, inputs),
                                testing::reference_outcome(shape, inputs, at::kDouble));
}

// A prompt of any length and then a token a step: what the whole sequence gives at once.
void expect_steps(const AttentionCase& shape) {
  const AttentionInputs inputs = make_inputs(shape);
  const at::Tensor whole =
      hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
  for (const std::int64_t length : {std::int64_t{1}, shape.T / 2, shape.T - 2}) {
    if (length < 1 || length >= shape.T) continue;
    DecodeState state = prefill_state(inputs.k.narrow(2, 0, length),
                                      inputs.v.narrow(2, 0, length),
                                      at::full({shape.B}, length, at::kLong),
                                      inputs.parameters,
                                      shape.options);
    EXPECT_EQ(state.kv_state.size(1), shape.shares_key_maps ? shape.G : shape.H);
    for (std::int64_t t = length; t < shape.T; ++t) {
      const at::Tensor y = decode_step(inputs.q.select(2, t),
                                       inputs.k.select(2, t),
                                       inputs.v.select(2, t),
                                       state,
                                       inputs.parameters,
                                       shape.options);
      ASSERT_TRUE(at::allclose(y, whole.select(2, t), 1e-4, 1e-5))
          << shape.name() << ", prompt of " << length << ", token " << t;
    }
  }
}

TEST(Sinks, EveryCausalPairIsInOneBranch) {
  for_each_case([](const AttentionCase& shape) {
    const AttentionInputs inputs = make_inputs(shape);
    const HybridWeights weights =
        hybrid_weights_reference(inputs.q, inputs.k, {}, inputs.parameters, shape.options);
    const at::Tensor i = at::arange(shape.T).unsqueeze(1), j = at::arange(shape.T).unsqueeze(0);
    const at::Tensor in_window = weights.window.ne(0), in_linear = weights.linear.ne(0);
    EXPECT_TRUE(
        at::equal(in_window.logical_xor(in_linear), j.le(i).expand_as(in_window).contiguous()))
        << shape.name();
    const at::Tensor sinks = j.lt(shape.options.num_sinks).logical_and(j.le(i));
    EXPECT_FALSE(in_linear.logical_and(sinks).any().item<bool>()) << shape.name();
  });
}

TEST(Sinks, HybridEqualsTheReferenceInValueAndEveryGradient) { for_each_case(expect_hybrid); }

// A sink's features are 0, which no map gives otherwise: neither value nor gradient may show it.
TEST(Sinks, HybridEqualsTheReferenceForEveryMapAndPrecision) {
  for (const FeatureMapRow& row : kFeatureMaps) {
    if (!row.positive) continue;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      AttentionCase shape{.T = 70,
                          .f = row.series ? 0 : 8,
                          .dtype = dtype,
                          .bias = row.is_activation(),
                          .shares_key_maps = !row.series};
      shape.options.set_map({.feature_map = row.value, .negation = row.is_activation()});
      shape.options.window = dtype == at::kFloat ? WindowLayout::kSliding : WindowLayout::kTerraced;
      shape.options.window_size = kWindow;
      shape.options.num_sinks = 3;
      expect_hybrid(shape);
    }
  }
}

// Two segments of 64 chunks: queries of both give the sinks' gradients.
TEST(Sinks, HybridEqualsTheReferenceWhereSinksMeetQueriesOfSeveralSegments) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    AttentionCase shape{.B = 1, .T = 1300, .shares_key_maps = layout == WindowLayout::kTerraced};
    shape.options.window = layout;
    shape.options.window_size = kWindow;
    shape.options.num_sinks = 4;
    expect_hybrid(shape);
  }
}

TEST(Sinks, KeyMapsOfKvHeadsNeedNoWindow) {
  for (const std::int64_t T : {1, 64, 65, 150}) {
    for (const std::int64_t f : {8, 0}) {  // 0: a bias alone tells whose map it is
      AttentionCase shape{.T = T, .f = f, .bias = true, .shares_key_maps = true};
      shape.options.window = WindowLayout::kNone;
      expect_hybrid(shape);
      expect_steps(shape);
    }
  }
}

// A map of a kv head is that of each of its query heads, and its gradient the sum of theirs.
TEST(Sinks, ASharedKeyMapIsOneOfEachQueryHeadWithTheSumOfTheirGradients) {
  AttentionCase shape{.T = 70, .shares_key_maps = true};
  shape.options.window_size = kWindow;
  shape.options.num_sinks = 4;
  const AttentionInputs shared = make_inputs(shape);
  AttentionInputs repeated = shared;
  repeated.parameters.k.layer = shared.parameters.k.layer.repeat_interleave(2, 0);
  const auto run = [&shape](const AttentionInputs& inputs) {
    return differentiate(
        [&](const AttentionInputs& x) {
          return hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options);
        },
        inputs.as(at::kDouble, at::kDouble));
  };
  const testing::Outcome ours = run(shared), theirs = run(repeated);
  EXPECT_TRUE(at::allclose(ours.value, theirs.value, 1e-12, 1e-12));
  for (std::size_t i = 0; i < ours.gradients.size(); ++i) {
    if (!ours.gradients[i].defined()) continue;
    const at::Tensor expected =
        ours.gradients[i].sizes() == theirs.gradients[i].sizes()
            ? theirs.gradients[i]
            : theirs.gradients[i].unflatten(0, {shape.G, shape.H / shape.G}).sum(1);
    EXPECT_TRUE(at::allclose(ours.gradients[i], expected, 1e-10, 1e-12)) << testing::kLeafNames[i];
  }
}

TEST(Sinks, CrossEntropyEqualsTheReferenceInValueAndEveryGradient) {
  for_each_case([](const AttentionCase& shape) {
    const AttentionInputs inputs = make_inputs(shape);
    const auto loss = [&](const AttentionInputs& x) {
      return transfer_cross_entropy(x.q, x.k, x.parameters, shape.options);
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

TEST(Sinks, PrefillAndStepsGiveWhatTheWholeSequenceGives) { for_each_case(expect_steps); }

TEST(Sinks, MoreOfThemThanTheWindowHoldsOrWithoutAWindowAreRefused) {
  AttentionCase shape;
  shape.options.window_size = 8;
  const AttentionInputs inputs = make_inputs(shape);
  const auto attend = [&] {
    hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
  };
  shape.options.num_sinks = 9;
  EXPECT_THAT(attend,
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("attention.num_sinks = 9: more than attention.window_size = 8; use at most that")));
  shape.options.window = WindowLayout::kNone;
  EXPECT_THAT(attend,
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr(
                  "attention.num_sinks = 9: sinks belong to a window, and attention.window is "
                  "none; use 0")));
}

}  // namespace
}  // namespace hedgerow::kernels
