// The last argument of the operations: a backend by name computes, or says why it does not.
#include "kernels/backend.hpp"

#include "kernels/attention_transfer.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/decode.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"
#include "kernels/window_attention.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels::testing {
namespace {

// What every operation gives in one backend, or with what sentence it refuses.
struct Answers {
  std::vector<at::Tensor> values;
  std::vector<std::string> refusals;
};

Answers answers(const AttentionInputs& x, const HybridOptions& options, Backend backend) {
  const at::Tensor lengths = at::full({x.q.size(0)}, x.q.size(2), at::kLong);
  Answers found;
  const auto ask = [&](const std::function<at::Tensor()>& operation) {
    try {
      found.values.push_back(operation());
    } catch (const c10::Error& error) {
      found.refusals.emplace_back(error.what_without_backtrace());
    }
  };
  ask([&] { return hybrid_attention(x.q, x.k, x.v, x.parameters, options, backend); });
  ask([&] { return linear_share(x.q, x.k, x.parameters, options, backend); });
  ask([&] { return softmax_attention(x.q, x.k, x.v, backend); });
  ask([&] { return softmax_attention_trainable(x.q, x.k, x.v, backend); });
  ask([&] { return softmax_attention_by_sequence(x.q, x.k, x.v, backend); });
  ask([&] { return transfer_mse(x.q, x.dy, backend); });
  ask([&] { return transfer_cross_entropy(x.q, x.k, x.parameters, options, backend); });
  ask([&] { return attention_transfer(x.q, x.k, x.v, x.parameters, options, backend).loss; });
  ask([&] { return prefill_state(x.k, x.v, lengths, x.parameters, options, backend).kv_state; });
  ask([&] {
    DecodeState state = prefill_state(x.k, x.v, lengths, x.parameters, options);
    const auto token = [](const at::Tensor& y) { return y.select(2, 0); };
    return decode_step(token(x.q), token(x.k), token(x.v), state, x.parameters, options, backend);
  });
  return found;
}

TEST(Backends, OfTheCpuGiveByNameTheBytesThatTheOperationsChooseThere) {
  const AttentionCase shape;
  const AttentionInputs x = make_inputs(shape);
  const Answers chosen = answers(x, shape.options, Backend::kAuto);
  const Answers named = answers(x, shape.options, Backend::kCpu);
  EXPECT_THAT(chosen.refusals, ::testing::IsEmpty());
  EXPECT_THAT(named.refusals, ::testing::IsEmpty());
  ASSERT_EQ(named.values.size(), chosen.values.size());
  for (std::size_t i = 0; i < chosen.values.size(); ++i) {
    EXPECT_TRUE(at::equal(named.values[i], chosen.values[i])) << "operation " << i;
  }
}

TEST(Backends, OfAtenTakeEverything) {
  const AttentionCase shape;
  EXPECT_THAT(answers(make_inputs(shape), shape.options, Backend::kAten).refusals,
              ::testing::IsEmpty());
}

TEST(Backends, OfTheCpuRefuseOtherDevicesAndFp64ByName) {
  const AttentionCase shape;
  const AttentionInputs inputs = make_inputs(shape);
  const auto refuses = [&](const AttentionInputs& x, const std::string& found) {
    const auto attend = [&] {
      hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, Backend::kCpu);
    };
    const auto compare = [&] { transfer_mse(x.q, x.dy, Backend::kCpu); };
    const std::string sentence =
        ": the CPU backend takes float32 and bfloat16 on the CPU, found " + found;
    EXPECT_THAT(
        attend,
        ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("hybrid attention" + sentence)));
    EXPECT_THAT(
        compare,
        ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("transfer_mse" + sentence)));
  };
  refuses(inputs.as(at::kFloat, at::kFloat, at::kMeta), "Float on meta");
  refuses(inputs.as(at::kDouble, at::kDouble), "Double on cpu");
  EXPECT_THAT(
      [&] { window_attention(inputs.q, inputs.k, inputs.v, shape.options, Backend::kCpu); },
      ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("no CPU backend computes it")));
}

TEST(Backends, OfCudaAreRefusedWhereTheBuildHasNone) {
  if (cuda::hybrid_backend() != nullptr) GTEST_SKIP() << "this build has CUDA kernels";
  const AttentionCase shape;
  const AttentionInputs x = make_inputs(shape);
  const Answers found = answers(x, shape.options, Backend::kCuda);
  EXPECT_THAT(found.values, ::testing::IsEmpty());
  for (const char* what : {"hybrid attention",
                           "softmax_attention",
                           "transfer_cross_entropy",
                           "attention_transfer",
                           "decode"}) {
    EXPECT_THAT(found.refusals,
                ::testing::Contains(
                    ::testing::StartsWith(std::string(what) + ": this build has no CUDA kernels")));
  }
  EXPECT_THAT(found.refusals,
              ::testing::Contains(::testing::HasSubstr("no CUDA kernel computes it alone")));
}

TEST(Backends, OfARecallCacheAreTheCpusWithoutGradientsAndAtens) {
  AttentionCase shape;
  shape.options.window_size = 16;
  shape.options.recall_cache = 4;
  const AttentionInputs inputs = make_inputs(shape);
  const auto attend = [&](const AttentionInputs& x, Backend backend) {
    return hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, backend);
  };
  EXPECT_TRUE(at::equal(attend(inputs, Backend::kCpu), attend(inputs, Backend::kAuto)));
  EXPECT_TRUE(
      at::allclose(attend(inputs, Backend::kAten), attend(inputs, Backend::kAuto), 1e-4, 1e-5));
  const AttentionInputs leaves = inputs.as(at::kFloat, at::kFloat);
  EXPECT_TRUE(at::equal(attend(leaves, Backend::kAten), attend(leaves, Backend::kAuto)));
  EXPECT_THAT([&] { attend(leaves, Backend::kCpu); },
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("the CPU backend has no gradients with a recall cache")));
  EXPECT_THAT([&] { attend(leaves, Backend::kCuda); },
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("no CUDA kernel of the whole sequence has a recall cache")));
}

}  // namespace
}  // namespace hedgerow::kernels::testing
