// What `bench kernels` computes with: costs, the clock, the opponents, and a sweep on the CPU; and
// the layer that `doctor --calibrate` times.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/softmax_attention.hpp"
#include "storage/base/error.hpp"
#include "worker/bench/alternate.hpp"
#include "worker/bench/kernel_costs.hpp"
#include "worker/bench/kernel_sweep.hpp"
#include "worker/bench/layer_times.hpp"
#include "worker/bench/softmax_opponents.hpp"

namespace hedgerow::worker::bench {
namespace {

using kernels::WindowLayout;
using nlohmann::json;
using ::testing::HasSubstr;

// Catches: a window one key too wide, or chunk borders that do not begin at token 0.
TEST(KernelCosts, WindowPairsAreTheOnesThatTheLayoutsHave) {
  const auto pairs = [](WindowLayout layout, std::int64_t T, std::int64_t sinks = 0) {
    return num_window_pairs({.layout = layout, .W = 4, .S = sinks}, T);
  };
  EXPECT_EQ(pairs(WindowLayout::kNone, 10), 0);
  EXPECT_EQ(pairs(WindowLayout::kSliding, 3), 1 + 2 + 3);
  EXPECT_EQ(pairs(WindowLayout::kSliding, 6), 1 + 2 + 3 + 4 + 4 + 4);
  EXPECT_EQ(pairs(WindowLayout::kSliding, 7, 2), 1 + 2 + 3 + 4 + 5 + 6 + 6);
  // Chunks 0..3, 4..7, 8..: the own one so far and all of the one before.
  EXPECT_EQ(pairs(WindowLayout::kTerraced, 10), 36 + 5 + 6);
  EXPECT_EQ(pairs(WindowLayout::kTerraced, 10, 2), 36 + 7 + 8);
}

// H 2 and G 1: of two query heads' maps and states of keys one is left.
TEST(KernelCosts, AKvHeadsMapAndStateOfKeysCountOnceForItsQueryHeads) {
  const AttentionSize size{.B = 1, .H = 2, .G = 1, .T = 8, .D = 4, .element_bytes = 2};
  const MapSize map{.F = 6,
                    .f = 3,
                    .layout = WindowLayout::kSliding,
                    .W = 4,
                    .S = 2,
                    .key_maps = storage::KeyMaps::kKvHead};
  const double pairs = 1 + 2 + 3 + 4 + 5 + 6 * 3;
  const Cost forward = hybrid_cost(size, map, BenchDirection::kForward);
  EXPECT_EQ(forward.flops, 2 * 4 * (4 * pairs + 8 * 1.5 * (2 * 6 + 2 * 3)));
  EXPECT_EQ(forward.bytes, 2 * (2 * 8 * 4 * (2 + 2 * 0.5) + 1.5 * 4 * 4 * 3));
  const Cost backward = hybrid_cost(size, map, BenchDirection::kBackward);
  EXPECT_EQ(backward.flops, 2 * 4 * (10 * pairs + 8 * (7 * 6 + 1.5 * 7 * 3)));
  const Cost step = hybrid_cost(size, map, BenchDirection::kDecode);
  EXPECT_EQ(step.flops, 2 * 4 * (4 * 6 + 1.5 * 2 * (6 + 3)));
  EXPECT_EQ(step.bytes, 2 * (0.5 * 4 * 6 * 5 * 2 + 2 * 2 * 6 * 4 * 0.5 + 1.5 * 4 * 4 * 3));
}

// The README's formulas with numbers put in by hand: H 2, G 1, T 8, D 4, F 6, f 3, W 4, bf16.
TEST(KernelCosts, AreThoseOfTheReadme) {
  const AttentionSize size{.B = 1, .H = 2, .G = 1, .T = 8, .D = 4, .element_bytes = 2};
  const MapSize map{.F = 6, .f = 3, .layout = WindowLayout::kSliding, .W = 4};
  const double pairs = 1 + 2 + 3 + 4 * 5;
  const Cost forward = hybrid_cost(size, map, BenchDirection::kForward);
  EXPECT_EQ(forward.flops, 2 * 4 * (4 * pairs + 8 * (4 * 6 + 4 * 3)));
  EXPECT_EQ(forward.bytes, 2 * (2 * 8 * 4 * (2 + 2 * 0.5) + 8 * 4 * 3));
  const Cost backward = hybrid_cost(size, map, BenchDirection::kBackward);
  EXPECT_EQ(backward.flops, 2 * 4 * (10 * pairs + 8 * (10 * 6 + 14 * 3)));
  EXPECT_EQ(backward.bytes, 2 * (2 * 8 * 4 * (4 + 4 * 0.5) + 16 * 4 * 3));
  const Cost training = hybrid_cost(size, map, BenchDirection::kTraining);
  EXPECT_EQ(training.flops, forward.flops + backward.flops);
  EXPECT_EQ(training.bytes, forward.bytes + backward.bytes);
  EXPECT_EQ(softmax_cost(size, BenchDirection::kForward).flops, 2 * 2 * 8 * 9 * 4);
  EXPECT_EQ(softmax_cost(size, BenchDirection::kBackward).flops, 2 * 5 * 8 * 9 * 4);
  const Cost step = hybrid_cost(size, map, BenchDirection::kDecode);
  EXPECT_EQ(step.flops, 2 * 4 * 4 * (4 + 6 + 3));
  EXPECT_EQ(step.bytes, 2 * (4 * 6 * 5 * 2 + 2 * 2 * 4 * 4 * 0.5 + 8 * 4 * 3));
  EXPECT_EQ(softmax_cost(size, BenchDirection::kDecode).bytes, 2 * 2 * 2 * 8 * 4 * 0.5);
}

TEST(KernelCosts, AMisfitShowsItsArithmetic) {
  MemoryNeed need;
  need.add("q, k, v", 4.3e9).add("T x T weights", 8.6e9);
  EXPECT_FALSE(need.fits(8'000'000'000));
  EXPECT_TRUE(need.fits(16'000'000'000));
  EXPECT_EQ(need.against(8'000'000'000),
            "needs 12.90 GB (q, k, v 4.30 GB + T x T weights 8.60 GB) of 8.00 GB");
}

// Catches: a window of 65,536 that times 65,536 calls a repeat, and rounds where nothing goes
// round.
TEST(KernelCosts, OnlyATerracedDecodeIsTimedInRoundsAndNotInEndlessOnes) {
  EXPECT_EQ(decode_steps_a_round({.layout = WindowLayout::kTerraced, .W = 64}), 64);
  EXPECT_EQ(decode_steps_a_round({.layout = WindowLayout::kTerraced, .W = 65536}), 4096);
  EXPECT_EQ(decode_steps_a_round({.layout = WindowLayout::kSliding, .W = 65536}), 1);
  EXPECT_EQ(decode_steps_a_round({.layout = WindowLayout::kNone, .W = 64}), 1);
}

// Catches: all repeats of one contender before those of the next.
TEST(Alternate, ContendersTakeTurnsAndCallsComeInRounds) {
  std::string order;
  const std::vector<Contender> both = {{[&] { order += 'a'; }, 2000},
                                       {[&] { order += 'b'; }, 1500}};
  const std::vector<Timing> timings = alternate(both, 2, at::kCPU);
  EXPECT_EQ(order.find_first_not_of('a'), order.find('b'));
  const std::string repeat = std::string(2000, 'a') + std::string(1500, 'b');
  EXPECT_TRUE(order.ends_with(repeat + repeat));
  EXPECT_EQ(order.size(), 2 * repeat.size() + 4);  // and two calls each to warm up
  EXPECT_GE(timings[0].median_ms, 0);
}

TEST(Alternate, TheMedianOfAnEvenNumberIsTheMiddleOfTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

// Catches: contenders of one dtype that hold a copy each, which no estimate of memory counts.
TEST(CastInputs, GiveEachDtypeOnceAndTheDrawItselfInFp32) {
  const AttentionSize size{.B = 1, .H = 2, .G = 1, .T = 8, .D = 4};
  for (const BenchDirection direction : {BenchDirection::kForward, BenchDirection::kTraining}) {
    const AttentionInputs drawn = draw_inputs(size, direction, at::kCPU);
    CastInputs inputs(drawn);
    EXPECT_TRUE(inputs.in(BenchDtype::kFloat32).q.is_same(drawn.q));
    const AttentionInputs first = inputs.in(BenchDtype::kBfloat16);
    EXPECT_TRUE(inputs.in(BenchDtype::kBfloat16).k.is_same(first.k));
    EXPECT_TRUE(at::equal(first.v, drawn.v.to(at::kBFloat16)));
    EXPECT_EQ(first.dy.defined(), direction == BenchDirection::kTraining);
  }
}

// Catches: no causal mask, or heads of the wrong group.
TEST(SoftmaxOpponents, EveryBackendThatRunsGivesSoftmaxAttention) {
  at::manual_seed(3);
  const at::Tensor q = at::randn({2, 4, 70, 16}), k = at::randn({2, 2, 70, 16}),
                   v = at::randn({2, 2, 70, 16});
  const at::Tensor exact = kernels::softmax_attention_reference(q, k, v);
  for (const SoftmaxBackend& backend : softmax_backends(at::kCPU)) {
    for (const bool expands : {false, true}) {
      const at::Tensor y = softmax_by(backend, expands, q, k, v, /*is_causal=*/true);
      EXPECT_LT((y - exact).abs().max().item<double>(), 1e-5) << backend.name << " " << expands;
    }
  }
}

// Catches: a backend by name that computes by another where it cannot itself.
TEST(SoftmaxOpponents, ABackendThatRefusesIsNotReplacedByAnother) {
  const at::Tensor q = at::randn({1, 2, 20, 16}), v = at::randn({1, 2, 20, 8});
  for (const SoftmaxBackend& backend : softmax_backends(at::kCPU)) {
    if (backend.name == "flash") {
      EXPECT_THROW(softmax_by(backend, false, q, q, v, true), c10::Error);
    } else {
      EXPECT_EQ(softmax_by(backend, false, q, q, v, true).size(3), 8) << backend.name;
    }
  }
  // And everything is allowed again behind it.
  EXPECT_EQ(at::scaled_dot_product_attention(q, q, v).size(3), 8);
}

TEST(SoftmaxOpponents, ABackendThatDoesNotFitIsLeftOutWithItsArithmetic) {
  const AttentionSize size{.B = 1, .H = 4, .G = 2, .T = 64, .D = 16};
  CastInputs inputs(draw_inputs(size, BenchDirection::kTraining, at::kCPU));
  // Enough for what is linear in T, not for four heads' maps.
  SoftmaxOpponents opponents(at::kCPU, 500'000);
  std::vector<LeftOut> left_out;
  const auto best = opponents.fastest(size, BenchDirection::kTraining, inputs, left_out);
  ASSERT_TRUE(best);
  EXPECT_THAT(best->name, HasSubstr("flash"));
  ASSERT_EQ(left_out.size(), 2U);
  EXPECT_EQ(left_out[0].name, "math, bf16");
  EXPECT_THAT(left_out[0].reason, HasSubstr("its T x T weights"));
}

// The most bytes that ATen held at once on the CPU while this lived, beyond those from before.
class PeakOfBytes {
 public:
  PeakOfBytes() : guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
  [[nodiscard]] std::int64_t bytes() const { return counter_->peak; }

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(
        void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
      now += size;
      peak = std::max(peak, now);
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
    std::int64_t now = 0, peak = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_;
};

// Catches: trials that keep their graphs and casts until the last one ran.
TEST(SoftmaxOpponents, OneAtATimeHoldsMemory) {
  at::set_num_threads(1);
  const AttentionSize size{.B = 1, .H = 4, .G = 2, .T = 256, .D = 16};
  const double square = 4.0 * 256 * 256 * 4;  // T x T in fp32, all heads
  CastInputs inputs(draw_inputs(size, BenchDirection::kBackward, at::kCPU));
  SoftmaxOpponents opponents(at::kCPU, 8'000'000'000);
  std::vector<LeftOut> left_out;
  const PeakOfBytes peak;
  const auto best = opponents.fastest(size, BenchDirection::kBackward, inputs, left_out);
  ASSERT_TRUE(best);
  EXPECT_TRUE(left_out.empty());
  EXPECT_LT(static_cast<double>(peak.bytes()) / square, 4);
}

std::vector<json> sweep_objects(const measure::KernelSweep& sweep, std::uint64_t memory) {
  at::set_num_threads(1);  // tasks this small only wait for a second one
  std::vector<json> objects;
  double share = 0;
  run_sweep(sweep,
            at::kCPU,
            memory,
            {.copy_bytes_per_second = 1e10, .bf16_flops = 1e11, .fp32_flops = 2e11},
            {.on_object = [&](const json& object) { objects.push_back(object); },
             .on_progress =
                 [&](double now, const std::string&) {
                   EXPECT_GE(now, share);
                   share = now;
                 }});
  return objects;
}

// Catches: a map, a layout or a direction whose call the kernels refuse or autograd cannot take.
TEST(KernelSweep, EveryMapLayoutDirectionAndDtypeIsMeasured) {
  measure::KernelSweep sweep;
  sweep.lengths = {40};
  sweep.heads = {{4, 2}};
  sweep.head_dim = 8;
  sweep.features = {16};
  sweep.window = 16;
  sweep.batch_tokens = 40;
  sweep.repeats = 1;
  sweep.layouts.assign(measure::kBenchLayouts.begin(), measure::kBenchLayouts.end());
  sweep.maps.assign(measure::kBenchMaps.begin(), measure::kBenchMaps.end());
  sweep.dtypes.assign(measure::kBenchDtypes.begin(), measure::kBenchDtypes.end());
  sweep.directions.assign(measure::kBenchDirections.begin(), measure::kBenchDirections.end());
  std::size_t num_measured = 0;
  for (const json& object : sweep_objects(sweep, 8'000'000'000)) {
    EXPECT_NE(object["event"], "refused") << object;
    if (object["event"] != "measured") continue;
    ++num_measured;
    EXPECT_GT(object["ms"].get<double>(), 0);
    EXPECT_GT(object["ratio"].get<double>(), 0) << object;
    EXPECT_FALSE(object["softmax"]["name"].get<std::string>().empty());
    const double shares = object["share_of_flops"].get<double>() * 2e11;
    EXPECT_NEAR(shares, object["tflop_per_s"].get<double>() * 1e12, 1e-6 * shares);
  }
  EXPECT_EQ(num_measured, 3U * measure::kBenchMaps.size() * 2U * 4U);
}

TEST(KernelSweep, WhatDoesNotFitIsRefusedAndTheSweepGoesOn) {
  measure::KernelSweep sweep;
  sweep.lengths = {8192, 32};
  sweep.batch_tokens = 32;
  sweep.repeats = 1;
  sweep.directions = {BenchDirection::kForward};
  sweep.layouts = {storage::WindowLayout::kTerraced};
  std::vector<json> rows;
  for (const json& object : sweep_objects(sweep, 20'000'000)) {
    if (object["event"] != "left_out") rows.push_back(object);
  }
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["event"], "measured");
  EXPECT_EQ(rows[0]["length"], 32);
  EXPECT_EQ(rows[1]["event"], "refused");
  EXPECT_THAT(rows[1]["reason"].get<std::string>(), HasSubstr("of 0.02 GB"));
}

// Catches: variants that would fit alone, beside an opponent that nobody counted.
TEST(KernelSweep, AVariantMustFitBesideTheOpponent) {
  measure::KernelSweep sweep;
  sweep.lengths = {2048};
  sweep.batch_tokens = 2048;
  sweep.repeats = 1;
  sweep.directions = {BenchDirection::kForward};
  sweep.layouts = {storage::WindowLayout::kTerraced};
  const std::vector<json> objects = sweep_objects(sweep, 45'000'000);
  EXPECT_EQ(objects.back()["event"], "refused");
  EXPECT_THAT(objects.back()["reason"].get<std::string>(), HasSubstr("GB + flash, "));
}

at::Tensor no_factors(c10::SymIntArrayRef,
                      const at::Scalar&,
                      std::optional<at::ScalarType>,
                      std::optional<at::Layout>,
                      std::optional<at::Device>,
                      std::optional<bool>) {
  throw std::runtime_error("launch failed: invalid argument\nand more");
}

// Catches: a launch that fails on CUDA, which is no c10::Error, ending the sweep.
TEST(KernelSweep, AnErrorThatIsNotLibTorchsRefusesItsVariantAlone) {
  measure::KernelSweep sweep;
  sweep.lengths = {32};
  sweep.batch_tokens = 32;
  sweep.repeats = 1;
  sweep.directions = {BenchDirection::kForward};
  sweep.layouts = {storage::WindowLayout::kTerraced, storage::WindowLayout::kNone};
  // What the window factors are made by.
  torch::Library broken(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  broken.impl("full", TORCH_FN(no_factors));
  std::map<std::string, json> rows;
  for (const json& object : sweep_objects(sweep, 8'000'000'000)) {
    if (object["event"] != "left_out") rows[object["layout"]] = object;
  }
  EXPECT_EQ(rows["terraced"]["event"], "refused") << rows["terraced"];
  EXPECT_EQ(rows["terraced"]["reason"], "launch failed: invalid argument");
  EXPECT_EQ(rows["none"]["event"], "measured") << rows["none"];
}

measure::LayerProbe small_layer() {
  measure::LayerProbe probe{.hidden_size = 32,
                          .intermediate_size = 64,
                          .num_attention_heads = 4,
                          .num_key_value_heads = 2,
                          .head_dim = 8,
                          .seq_len = 64,
                          .sequences = 2};
  probe.attention.feature_dim = 8;
  probe.attention.window_size = 16;
  return probe;
}

TEST(LayerTimes, AStepOfTransferTakesLongerThanALayersProductsInBothDtypes) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // as it is timed; several that wait for a busy core tell no order
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const measure::LayerSeconds seconds = time_layer(small_layer(), at::kCPU, dtype);
    EXPECT_GT(seconds.products, 0.0);
    EXPECT_GT(seconds.capture, 0.0);
    EXPECT_GT(seconds.transfer, seconds.products);
  }
  at::set_num_threads(threads);
}

TEST(LayerTimes, AShapeThatNoLayerHasIsRefused) {
  measure::LayerProbe heads = small_layer(), length = small_layer(), features = small_layer();
  heads.num_attention_heads = 3;
  length.seq_len = 0;
  features.attention.feature_dim = -1;
  for (const measure::LayerProbe& probe : {heads, length, features}) {
    try {
      (void)time_layer(probe, at::kCPU, at::kFloat);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage) << error.what();
    }
  }
}

}  // namespace
}  // namespace hedgerow::worker::bench
