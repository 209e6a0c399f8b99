// Cards with 99 KiB of shared memory a threadblock (compute capability 8.6 and 8.9): which problems
// the emulated kernels take there, and that they give the bytes of a large card.
#include <algorithm>

#include "kernels/cuda/attention_transfer_cuda.hpp"
#include "kernels/cuda/decode_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/cuda/transfer/transfer_launch.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"
#include "tests/kernels/emulation/emulated_device.hpp"

namespace hedgerow::kernels::testing {
namespace {

using cuda::emulation::SharedBytesLimit;

constexpr std::size_t kSmallCard = 101376;  // what CUDA says of 8.6 and 8.9

// head_dim 128, F = 128.
AttentionCase llama(WindowLayout layout, std::int64_t T) {
  AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = T, .D = 128, .f = 64, .dtype = at::kBFloat16};
  shape.options.window = layout;
  return shape;
}

// Windows that end with a tile and inside one, sinks that are near and far, in one tile and two,
// maps of query heads and of kv heads; no length is a whole number of tiles.
std::vector<AttentionCase> cases_of(AttentionCase shape) {
  struct Variant {
    WindowLayout layout;
    std::int64_t window, sinks, T;
    bool shares_key_maps;
  };
  std::vector<AttentionCase> cases;
  for (const Variant variant : {Variant{WindowLayout::kTerraced, 64, 0, 201, false},
                                Variant{WindowLayout::kTerraced, 64, 4, 330, true},
                                Variant{WindowLayout::kTerraced, 96, 70, 290, false},
                                Variant{WindowLayout::kSliding, 64, 0, 150, true},
                                Variant{WindowLayout::kSliding, 20, 3, 201, false},
                                Variant{WindowLayout::kSliding, 128, 100, 330, true},
                                Variant{WindowLayout::kNone, 64, 0, 150, true}}) {
    shape.options.window = variant.layout;
    shape.options.window_size = variant.window;
    shape.options.num_sinks = variant.sinks;
    shape.T = variant.T;
    shape.shares_key_maps = variant.shares_key_maps;
    shape.bias = !shape.bias;
    cases.push_back(shape);
  }
  return cases;
}

void expect_same_bytes(const AttentionCase& shape, const AttentionFunction& function) {
  const AttentionInputs inputs = make_bfloat16_inputs(shape);
  const auto outcome = [&] {
    return differentiate(function, inputs.as(at::kBFloat16, at::kFloat));
  };
  const Outcome large = outcome();
  const SharedBytesLimit limit(kSmallCard);
  const Outcome small_card = outcome();
  EXPECT_TRUE(at::equal(large.value, small_card.value)) << shape.name();
  for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
    const at::Tensor &expected = large.gradients[i], &found = small_card.gradients[i];
    ASSERT_EQ(found.defined(), expected.defined()) << shape.name() << ", d" << kLeafNames[i];
    EXPECT_TRUE(!found.defined() || at::equal(found, expected))
        << shape.name() << ", d" << kLeafNames[i];
  }
}

AttentionFunction hybrid(const HybridOptions& options) {
  return [options](const AttentionInputs& x) {
    return hybrid_attention(x.q, x.k, x.v, x.parameters, options, Backend::kCuda);
  };
}

AttentionFunction transfer(const HybridOptions& options) {
  return [options](const AttentionInputs& x) {
    return attention_transfer(x.q, x.k, x.v, x.parameters, options, Backend::kCuda).loss;
  };
}

AttentionFunction cross_entropy(const HybridOptions& options) {
  return [options](const AttentionInputs& x) {
    return transfer_cross_entropy(x.q, x.k, x.parameters, options, Backend::kCuda);
  };
}

TEST(SmallCards, TakeHeadDim128With128Features) {
  const SharedBytesLimit limit(kSmallCard);
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    const AttentionCase shape = llama(layout, 80);
    const AttentionInputs x = make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat);
    const HybridOptions& options = shape.options;
    EXPECT_EQ(cuda::hybrid_backend()->why_not(x.q, x.parameters, options, false), "");
    EXPECT_EQ(cuda::hybrid_backend()->why_not(x.q, x.parameters, options, true), "");
    EXPECT_EQ(cuda::hybrid_backend()->why_not_window(x.q), "");
    EXPECT_EQ(cuda::transfer_backend()->why_no_softmax(x.q), "");
    EXPECT_EQ(cuda::transfer_backend()->why_no_transfer(x.q, x.parameters, options), "");
    EXPECT_EQ(cuda::transfer_backend()->why_no_cross_entropy(x.q, x.parameters, options), "");
    const DecodeState state = make_decode_state(
        shape.B, shape.H, shape.G, shape.D, 128, at::kBFloat16, at::kCPU, options);
    EXPECT_EQ(cuda::decode_backend()->why_not(state, x.parameters, options), "");
  }
}

// Nobody has timed the compact forms: a device that holds the large ones runs those.
TEST(SmallCards, RunOtherFormsThanDevicesWithMoreSharedMemory) {
  const cuda::KernelShape shape{128, 64, true};
  const auto needed = [&] {
    return std::vector<std::size_t>{cuda::shared_bytes_needed(shape, false),
                                    cuda::shared_bytes_needed(shape, true),
                                    cuda::transfer_shared_bytes(shape)};
  };
  const std::vector<std::size_t> large = needed();
  for (const std::size_t bytes : large) {
    EXPECT_GT(bytes, kSmallCard);
  }
  {
    const SharedBytesLimit limit(*std::max_element(large.begin(), large.end()));
    EXPECT_EQ(needed(), large) << "it holds them exactly";
  }
  const SharedBytesLimit limit(kSmallCard);
  for (const std::size_t bytes : needed()) {
    EXPECT_LE(bytes, kSmallCard);
  }
}

TEST(SmallCards, AreRefusedInOneSentenceWithLessSharedMemory) {
  const AttentionCase shape = llama(WindowLayout::kTerraced, 80);
  const AttentionInputs x = make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat);
  const SharedBytesLimit limit(std::size_t{64} << 10);
  for (const bool input_gradients : {false, true}) {
    EXPECT_EQ(
        cuda::hybrid_backend()->why_not(x.q, x.parameters, shape.options, input_gradients),
        "a threadblock of the fused CUDA kernels needs 101376 bytes of shared memory, the device "
        "has 65536");
  }
  EXPECT_THAT(refusal([&] { hybrid(shape.options)(x); }),
              ::testing::HasSubstr("needs 101376 bytes of shared memory, the device has 65536"));
}

TEST(SmallCards, GiveTheBytesOfLargeCardsForTheHybridAndAllItsGradients) {
  for (const AttentionCase& shape : cases_of(llama(WindowLayout::kTerraced, 0))) {
    expect_same_bytes(shape, hybrid(shape.options));
  }
}

TEST(SmallCards, GiveTheBytesOfLargeCardsForAttentionTransfer) {
  for (const AttentionCase& shape : cases_of(llama(WindowLayout::kTerraced, 0))) {
    expect_same_bytes(shape, transfer(shape.options));
  }
}

TEST(SmallCards, GiveTheBytesOfLargeCardsForTheCrossEntropy) {
  const AttentionCase shape = llama(WindowLayout::kSliding, 150);
  expect_same_bytes(shape, cross_entropy(shape.options));
}

TEST(SmallCards, GiveTheBytesOfLargeCardsForTheWindowAlone) {
  for (const AttentionCase& shape : cases_of(llama(WindowLayout::kTerraced, 0))) {
    const AttentionInputs x = make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat);
    const auto window = [&] {
      return cuda::hybrid_backend()->window(
          x.q.detach(), x.k.detach(), x.v.detach(), shape.options);
    };
    if (shape.options.window != WindowLayout::kNone) {
      const at::Tensor large = window();
      const SharedBytesLimit limit(kSmallCard);
      EXPECT_TRUE(at::equal(large, window())) << shape.name();
    }
  }
}

// The other shapes that a small card holds in the compact form alone.
TEST(SmallCards, GiveTheBytesOfLargeCardsForOtherColumnsOfMaps) {
  struct Sizes {
    std::int64_t D, f;
    bool negation;
  };
  for (const Sizes sizes : {Sizes{128, 32, true}, Sizes{128, 64, false}, Sizes{64, 128, false}}) {
    AttentionCase base = llama(WindowLayout::kTerraced, 0);
    base.D = sizes.D;
    base.f = sizes.f;
    base.options.negation = sizes.negation;
    const std::vector<AttentionCase> cases = cases_of(base);
    for (const std::size_t i : {std::size_t{1}, std::size_t{4}}) {
      expect_same_bytes(cases[i], hybrid(cases[i].options));
      expect_same_bytes(cases[i], transfer(cases[i].options));
    }
  }
}

}  // namespace
}  // namespace hedgerow::kernels::testing
