// The exact cache against a program that follows the definition token by token, in fp64; prefill
// and decode against the whole sequence. Catches: a key in both branches or in none, a choice by
// another state than that of all folded before, one that depends on where a prompt was cut, on the
// batch or on padding, a cached key counted again in a sliding window.
#include "kernels/problem/recall_cache.hpp"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "kernels/cpu/recall_cpu.hpp"
#include "kernels/decode.hpp"
#include "kernels/hybrid_attention.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::make_inputs;

constexpr std::int64_t kChunk = 8;

// Thousands of small operations, in which several threads wait for each other.
class RecallCache : public ::testing::Test {
 protected:
  RecallCache() { at::set_num_threads(1); }
  ~RecallCache() override { at::set_num_threads(before_); }
  RecallCache(const RecallCache&) = delete;
  RecallCache& operator=(const RecallCache&) = delete;

 private:
  int before_ = at::get_num_threads();
};

void for_each_recall_case(const std::function<void(const AttentionCase&)>& visit) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const std::int64_t T : {1, 7, 8, 9, 16, 17, 24, 25, 41, 67}) {
      for (const std::int64_t recall : {1, 3, 8}) {
        for (const bool shares : {false, true}) {
          AttentionCase shape{.T = T, .bias = true, .shares_key_maps = shares};
          shape.options.window = layout;
          shape.options.window_size = kChunk;
          shape.options.num_sinks = recall == 3 ? 0 : 2;
          shape.options.recall_cache = recall;
          shape.options.linear_cap = recall == 1 ? 0 : 5;
          visit(shape);
        }
      }
    }
  }
}

// One kv head of one sequence, its choices one after another.
class NaiveChooser {
 public:
  NaiveChooser(const at::Tensor& phi, const at::Tensor& v, const HybridOptions& options)
      : phi_(phi), v_(v), options_(options) {}  // phi [u, T, F], v [T, D], fp64

  void choose(std::int64_t chunk) {
    std::set<std::int64_t> candidates = cache_;
    for (std::int64_t t = chunk * kChunk; t < (chunk + 1) * kChunk; ++t) {
      if (t >= options_.num_sinks) candidates.insert(t);
    }
    std::vector<std::pair<double, std::int64_t>> ranked;
    for (const std::int64_t t : candidates) ranked.emplace_back(-residual(t), t);
    std::sort(ranked.begin(), ranked.end());
    cache_.clear();
    for (const auto& [score, t] : ranked) {
      if (static_cast<std::int64_t>(cache_.size()) < options_.recall_cache) {
        cache_.insert(t);
      } else {
        folded_.insert(t);
      }
    }
  }
  [[nodiscard]] const std::set<std::int64_t>& cache() const { return cache_; }

 private:
  [[nodiscard]] double residual(std::int64_t t) const {
    double sum = 0.0;
    for (std::int64_t u = 0; u < phi_.size(0); ++u) {
      at::Tensor recalled = at::zeros_like(v_[t]);
      double mass = 0.0;
      for (const std::int64_t j : folded_) {
        const double weight = phi_[u][t].dot(phi_[u][j]).item<double>();
        recalled += weight * v_[j];
        mass += weight;
      }
      if (mass > 0.0) recalled /= mass;
      sum += (v_[t] - recalled).pow(2).sum().item<double>();
    }
    return sum;
  }

  at::Tensor phi_, v_;
  const HybridOptions& options_;
  std::set<std::int64_t> cache_, folded_;
};

// y by pairs, and the caches after each choice.
struct Naive {
  at::Tensor y;
  std::map<std::array<std::int64_t, 3>, std::set<std::int64_t>> kept;  // choice, row, kv head
};

Naive naive_attention(const AttentionCase& shape, const AttentionInputs& given) {
  const AttentionInputs x = given.as(at::kDouble, at::kDouble);
  const HybridOptions& options = shape.options;
  const std::int64_t group = shape.H / shape.G, U = shape.shares_key_maps ? shape.G : shape.H;
  const at::Tensor phi_q =
      apply_feature_map(x.q, x.parameters.q, options, shape.H, FeatureMapRole::kQuery);
  const at::Tensor phi_k = apply_feature_map(x.k, x.parameters.k, options, U, FeatureMapRole::kKey);
  const bool sliding = options.window == WindowLayout::kSliding;
  Naive naive{at::zeros_like(x.q), {}};
  for (std::int64_t b = 0; b < shape.B; ++b) {
    for (std::int64_t g = 0; g < shape.G; ++g) {
      const std::int64_t maps = U / shape.G;
      NaiveChooser chooser(phi_k[b].narrow(0, g * maps, maps), x.v[b][g], options);
      for (std::int64_t i = 0; i < shape.T; ++i) {
        const std::int64_t chunk = i / kChunk - (sliding ? 1 : 2);
        if (i % kChunk == 0 && chunk >= 0) {
          chooser.choose(chunk);
          naive.kept[{chunk, b, g}] = chooser.cache();
        }
        const std::int64_t begin = window_begin(options.window, kChunk, i);
        const auto before =
            static_cast<double>(std::max<std::int64_t>(1, begin - options.num_sinks));
        const double share = options.linear_cap == 0
                                 ? 1.0
                                 : std::min(1.0, static_cast<double>(options.linear_cap) / before);
        for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
          const std::int64_t u = shape.shares_key_maps ? g : h;
          const double gate = at::sigmoid(x.parameters.window_factors[h]).item<double>();
          std::vector<double> scores(static_cast<std::size_t>(i + 1), -INFINITY);
          double largest = -INFINITY;
          for (std::int64_t j = 0; j <= i; ++j) {
            if (j < begin && j >= options.num_sinks && !chooser.cache().contains(j)) continue;
            auto& score = scores[static_cast<std::size_t>(j)];
            score = x.q[b][h][i].dot(x.k[b][g][j]).item<double>() / std::sqrt(shape.D);
            largest = std::max(largest, score);
          }
          at::Tensor y = at::zeros_like(x.v[b][g][0]);
          double sum = 0.0;
          for (std::int64_t j = 0; j <= i; ++j) {
            const double score = scores[static_cast<std::size_t>(j)];
            const double weight = score > -INFINITY
                                      ? gate * std::exp(score - largest)
                                      : share * phi_q[b][h][i].dot(phi_k[b][u][j]).item<double>();
            y += weight * x.v[b][g][j];
            sum += weight;
          }
          naive.y[b][h][i].copy_(y / sum);
        }
      }
    }
  }
  return naive;
}

at::Tensor choices_by_tiles(const AttentionInputs& x, const HybridOptions& options) {
  return cpu::recall_choices(
      cpu::on_cpu(make_hybrid_problem(x.q, x.k, x.v, x.parameters, options)));
}

void expect_kept(const at::Tensor& positions,
                 const std::set<std::int64_t>& expected,
                 const std::string& what) {
  std::set<std::int64_t> found;
  std::int64_t last = -1;
  for (std::int64_t n = 0; n < positions.numel(); ++n) {
    const auto token = positions[n].item<std::int64_t>();
    if (token < 0) continue;
    EXPECT_GT(token, last) << what << ": by token";
    last = token;
    found.insert(token);
  }
  EXPECT_EQ(found, expected) << what;
}

TEST_F(RecallCache, AttendsAndChoosesAsTheDefinitionDoesTokenByToken) {
  for_each_recall_case([](const AttentionCase& shape) {
    const AttentionInputs inputs = make_inputs(shape);
    const Naive naive = naive_attention(shape, inputs);
    at::Tensor kept;
    const at::Tensor y =
        recall_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options, &kept);
    EXPECT_TRUE(at::allclose(y.to(at::kDouble), naive.y, 1e-4, 1e-5))
        << shape.name() << ", recall " << shape.options.recall_cache << ": "
        << (y.to(at::kDouble) - naive.y).abs().max().item<double>();
    ASSERT_EQ(kept.numel() == 0 ? 0 : kept.size(0) * shape.B * shape.G,
              static_cast<std::int64_t>(naive.kept.size()));
    for (const auto& [key, tokens] : naive.kept) {
      const auto [choice, b, g] = key;
      expect_kept(kept[choice][b][g], tokens, shape.name());
    }
    const at::Tensor tiles =
        hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
    EXPECT_TRUE(at::allclose(tiles.to(at::kDouble), naive.y, 1e-4, 1e-5))
        << shape.name() << ", recall " << shape.options.recall_cache
        << ", by tiles: " << (tiles.to(at::kDouble) - naive.y).abs().max().item<double>();
    const at::Tensor of_tiles = choices_by_tiles(inputs, shape.options);
    EXPECT_EQ(of_tiles.defined(), kept.numel() > 0);
    EXPECT_TRUE(kept.numel() == 0 || at::equal(of_tiles, kept)) << shape.name();
  });
}

// Several segments a head, walked side by side.
TEST_F(RecallCache, TilesGiveTheSameInSegmentsAndInBf16) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const bool shares : {false, true}) {
      AttentionCase shape{
          .B = 1, .H = 1, .G = 1, .T = 2107, .bias = true, .shares_key_maps = shares};
      shape.options.window = layout;
      shape.options.window_size = kChunk;
      shape.options.num_sinks = 2;
      shape.options.recall_cache = 5;
      const AttentionInputs inputs = make_inputs(shape);
      at::Tensor kept;
      const at::Tensor y =
          recall_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options, &kept);
      at::set_num_threads(2);  // more than heads
      const at::Tensor tiles =
          hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
      at::set_num_threads(1);
      EXPECT_TRUE(at::allclose(tiles, y, 1e-3, 1e-4))
          << shape.name() << (tiles - y).abs().max().item<double>();
      EXPECT_TRUE(at::equal(choices_by_tiles(inputs, shape.options), kept)) << shape.name();
      const AttentionInputs low = inputs.as(at::kBFloat16, at::kFloat);
      const at::Tensor exact = recall_attention(low.q.to(at::kFloat),
                                                low.k.to(at::kFloat),
                                                low.v.to(at::kFloat),
                                                low.parameters,
                                                shape.options);
      const at::Tensor rounded =
          hybrid_attention(low.q, low.k, low.v, low.parameters, shape.options).to(at::kFloat);
      EXPECT_LT((rounded - exact).abs().max().item<double>(), 0.03) << shape.name();
    }
  }
}

TEST_F(RecallCache, TheReferenceOfPairsGivesTheSame) {
  AttentionCase shape{.T = 67, .shares_key_maps = true};
  shape.options.window_size = kChunk;
  shape.options.num_sinks = 2;
  shape.options.recall_cache = 5;
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    shape.options.window = layout;
    const AttentionInputs inputs = make_inputs(shape);
    const at::Tensor exact = hybrid_attention(inputs.q.to(at::kDouble),
                                              inputs.k.to(at::kDouble),
                                              inputs.v.to(at::kDouble),
                                              inputs.as(at::kDouble, at::kDouble).parameters,
                                              shape.options);
    const at::Tensor y =
        hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
    EXPECT_TRUE(at::allclose(y.to(at::kDouble), exact, 1e-4, 1e-5)) << shape.name();
  }
}

void expect_recall_steps(const AttentionCase& shape, Backend backend) {
  const AttentionInputs inputs = make_inputs(shape);
  at::Tensor kept;
  const at::Tensor whole =
      recall_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options, &kept);
  for (std::int64_t length = 1; length < shape.T; length += 5) {
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
          << shape.name() << ", prompt of " << length << ", token " << t;
    }
    if (kept.size(0) > 0) {
      EXPECT_TRUE(at::equal(state.recall_positions, kept[-1])) << shape.name();
    }
  }
}

TEST_F(RecallCache, PrefillAndStepsChooseAndGiveWhatTheWholeSequenceGives) {
  for_each_recall_case(
      [](const AttentionCase& shape) { expect_recall_steps(shape, Backend::kAuto); });
}

TEST_F(RecallCache, OperationsOfAnyDeviceChooseAndGiveTheSame) {
  for_each_recall_case([](const AttentionCase& shape) {
    if (shape.T == 67) expect_recall_steps(shape, Backend::kAten);
  });
}

// Rows of other lengths, and what lies behind a row's end.
TEST_F(RecallCache, ARowsChoicesDependNeitherOnTheBatchNorOnPadding) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    AttentionCase shape{.B = 3, .T = 60, .shares_key_maps = true};
    shape.options.window = layout;
    shape.options.window_size = kChunk;
    shape.options.num_sinks = 1;
    shape.options.recall_cache = 4;
    const AttentionInputs inputs = make_inputs(shape);
    const at::Tensor lengths = at::tensor({60, 19, 33}, at::kLong);
    DecodeState all = prefill_state(inputs.k, inputs.v, lengths, inputs.parameters, shape.options);
    for (std::int64_t b = 0; b < shape.B; ++b) {
      const auto length = lengths[b].item<std::int64_t>();
      const DecodeState alone = prefill_state(inputs.k.narrow(0, b, 1).narrow(2, 0, length),
                                              inputs.v.narrow(0, b, 1).narrow(2, 0, length),
                                              at::full({1}, length, at::kLong),
                                              inputs.parameters,
                                              shape.options);
      EXPECT_TRUE(at::equal(all.recall_positions[b], alone.recall_positions[0]));
      EXPECT_TRUE(at::equal(all.recall_k[b], alone.recall_k[0]));
      EXPECT_TRUE(at::allclose(all.kv_state[b], alone.kv_state[0], 1e-5, 1e-6));
    }
  }
}

TEST_F(RecallCache, WithoutAWindowOrWithMoreKeysThanItHoldsIsRefused) {
  AttentionCase shape;
  shape.options.window_size = kChunk;
  const AttentionInputs inputs = make_inputs(shape);
  const auto attend = [&] {
    hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
  };
  const auto refused = [&](std::int64_t keys, const char* why) {
    shape.options.recall_cache = keys;
    EXPECT_THAT(attend, ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(why)));
  };
  refused(-1, "attention.recall_cache = -1: expected 0 to 65536");
  refused(9, "attention.recall_cache = 9: more than attention.window_size = 8; use at most that");
  shape.options.window = WindowLayout::kNone;
  refused(1,
          "attention.recall_cache = 1: the cache holds keys that left a window, and "
          "attention.window is none; use 0");
}

TEST_F(RecallCache, AStateThatWasMadeWithoutOneDoesNotGoOnWithOne) {
  AttentionCase shape{.T = 20};
  shape.options.window_size = kChunk;
  const AttentionInputs inputs = make_inputs(shape);
  DecodeState state = prefill_state(inputs.k,
                                    inputs.v,
                                    at::full({shape.B}, shape.T, at::kLong),
                                    inputs.parameters,
                                    shape.options);
  shape.options.recall_cache = 4;
  const auto step = [&] {
    decode_step(inputs.q.select(2, 0),
                inputs.k.select(2, 0),
                inputs.v.select(2, 0),
                state,
                inputs.parameters,
                shape.options);
  };
  EXPECT_THAT(step,
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("as recall_cache says")));
}

TEST_F(RecallCache, AStateWhoseCacheIsOnAnotherDeviceIsRefused) {
  AttentionCase shape{.T = 20};
  shape.options.window_size = kChunk;
  shape.options.recall_cache = 4;
  const AttentionInputs inputs = make_inputs(shape);
  const DecodeState state = prefill_state(inputs.k,
                                          inputs.v,
                                          at::full({shape.B}, shape.T, at::kLong),
                                          inputs.parameters,
                                          shape.options);
  for (at::Tensor DecodeState::*const part :
       {&DecodeState::recall_k, &DecodeState::recall_v, &DecodeState::recall_positions}) {
    DecodeState other = state;
    other.*part = (state.*part).to(at::kMeta);
    EXPECT_THAT(([&] {
                  decode_step(inputs.q.select(2, 0),
                              inputs.k.select(2, 0),
                              inputs.v.select(2, 0),
                              other,
                              inputs.parameters,
                              shape.options);
                }),
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("on its device")));
  }
}

}  // namespace
}  // namespace hedgerow::kernels
