// The backends here compute nothing: what is tested is which of them a task asks, and with what.
#include "worker/model/attention_path.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace hedgerow::worker {
namespace {

using kernels::DecodeState;
using kernels::HybridOptions;
using kernels::HybridParameters;

std::string refused;  // the one question that is answered with its own name

std::string answer(const std::string& question) { return question == refused ? question : ""; }

constexpr kernels::cuda::HybridBackend kHybrid{
    .why_not = [](const at::Tensor& q,
                  const HybridParameters&,
                  const HybridOptions&,
                  bool input_gradients) -> std::string {
      EXPECT_EQ(q.sizes(), at::IntArrayRef({1, 9, 1, 64}));
      EXPECT_EQ(q.scalar_type(), at::kBFloat16);
      return answer(input_gradients ? "backward" : "forward");
    },
    .forward = nullptr,
    .why_not_window = nullptr,
    .window = nullptr,
    .backward = nullptr};
constexpr kernels::cuda::TransferBackend kTransfer{
    .why_no_softmax = [](const at::Tensor&) { return answer("softmax"); },
    .softmax = nullptr,
    .why_no_transfer = [](const at::Tensor&,
                          const HybridParameters&,
                          const HybridOptions&) { return answer("transfer"); },
    .transfer = nullptr,
    .why_no_cross_entropy = [](const at::Tensor&,
                               const HybridParameters&,
                               const HybridOptions&) { return answer("cross-entropy"); },
    .cross_entropy = nullptr};
constexpr kernels::cuda::DecodeBackend kDecode{
    .why_not =
        [](const DecodeState& state, const HybridParameters&, const HybridOptions&) -> std::string {
      EXPECT_EQ(state.kv_state.sizes(), at::IntArrayRef({1, 3, 128, 64}));
      EXPECT_EQ(state.window_k.scalar_type(), at::kBFloat16);
      return answer("decode");
    },
    .prefill = nullptr,
    .step = nullptr};

class AttentionPathTest : public ::testing::Test {
 protected:
  AttentionPathTest() {
    parameters_.q.layer = at::zeros({9, 64, 64});
    parameters_.k.layer = at::zeros({3, 64, 64});
    parameters_.window_factors = at::zeros({9});
    config_.num_attention_heads = 9;
    config_.num_key_value_heads = 3;
    config_.head_dim = 64;
  }

  [[nodiscard]] AttentionPath path(AttentionUse use) const {
    AttentionPath path = attention_path(use, config_, at::kCPU, at::kBFloat16);
    path.parameters = &parameters_;
    return path;
  }
  // Those of the questions to the backends whose refusal the task hears of.
  [[nodiscard]] static std::vector<std::string> heard(const AttentionPath& path) {
    std::vector<std::string> heard;
    for (const char* question :
         {"softmax", "forward", "backward", "transfer", "cross-entropy", "decode"}) {
      refused = question;
      if (why_not_fused(path, {&kHybrid, &kTransfer, &kDecode}) == question)
        heard.emplace_back(question);
    }
    refused.clear();
    EXPECT_EQ(why_not_fused(path, {&kHybrid, &kTransfer, &kDecode}), "");
    return heard;
  }

  storage::ModelConfig config_;
  HybridParameters parameters_;
};

// Catches: a task that says "fused" of a kernel that it does not use, and not of one that it does.
TEST_F(AttentionPathTest, EachTaskAsksTheBackendsOfItsOwnSteps) {
  using List = std::vector<std::string>;
  AttentionPath transfer = path(AttentionUse::kTransfer);
  EXPECT_EQ(heard(transfer), (List{"softmax", "forward", "transfer"}));
  transfer.xent_factor = 1.0;
  EXPECT_EQ(heard(transfer), (List{"softmax", "forward", "transfer", "cross-entropy"}));
  EXPECT_EQ(heard(path(AttentionUse::kFinetune)), (List{"backward"}));
  EXPECT_EQ(heard(path(AttentionUse::kEvaluate)), (List{"softmax", "forward"}));
  EXPECT_EQ(heard(path(AttentionUse::kGenerate)), (List{"softmax", "forward", "decode"}));
  AttentionPath teacher = path(AttentionUse::kEvaluate);
  teacher.parameters = nullptr;
  EXPECT_EQ(heard(teacher), (List{"softmax"}));
}

TEST_F(AttentionPathTest, SettingsThatNoFusedKernelKnowsAreNamed) {
  const AttentionBackends all{&kHybrid, &kTransfer, &kDecode};
  AttentionPath generate = path(AttentionUse::kGenerate);
  generate.options.recall_cache = 4;
  EXPECT_EQ(
      why_not_fused(generate, all),
      "a recall cache (attention.recall_cache > 0) has no fused kernel but the decode step's");
  EXPECT_EQ(why_not_fused(generate, {nullptr, nullptr, nullptr}),
            "this build has no CUDA kernels; build with HEDGEROW_CUDA=ON");
}

TEST_F(AttentionPathTest, OnTheProcessorsNothingIsSaid) {
  ::testing::internal::CaptureStderr();
  say_attention(path(AttentionUse::kTransfer));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// Softmax layers have none, and those of another rank no tensors.
TEST_F(AttentionPathTest, TheFirstLayerWithMapsIsAsked) {
  const std::vector<std::optional<HybridParameters>> layers = {
      std::nullopt, HybridParameters{}, parameters_};
  EXPECT_EQ(first_parameters(layers), &*layers[2]);
  EXPECT_EQ(first_parameters({std::nullopt, HybridParameters{}}), nullptr);
}

}  // namespace
}  // namespace hedgerow::worker
