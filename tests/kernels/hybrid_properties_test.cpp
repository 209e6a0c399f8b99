// What makes the hybrid the model it is: causal, softmax inside the window, each key read once, the
// same bytes however many threads; and the messages for input that cannot be attended to.
#include <ATen/Parallel.h>

#include "kernels/hybrid_attention.hpp"
#include "kernels/hybrid_passes.hpp"
#include "kernels/reference.hpp"
#include "kernels/softmax_attention.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::hybrid_outcome;
using testing::kLayouts;
using testing::kLeafNames;
using testing::make_inputs;
using testing::Outcome;

at::Tensor attend(const AttentionInputs& x, const HybridOptions& options) {
  return hybrid_attention(x.q, x.k, x.v, x.parameters, options);
}

// Chunks are anchored at token 0: a prefix alone gives what it gives inside a longer sequence.
TEST(HybridAttention, OfAPrefixIsThePrefixOfTheWhole) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.T = 200};
    shape.options.window = layout;
    const AttentionInputs inputs = make_inputs(shape);
    const at::Tensor whole = attend(inputs, shape.options);
    for (const std::int64_t t : {1, 63, 65, 130, 192}) {
      AttentionInputs prefix = inputs;
      for (at::Tensor* x : {&prefix.q, &prefix.k, &prefix.v}) {
        *x = x->narrow(2, 0, t);
      }
      const at::Tensor found = attend(prefix, shape.options);
      EXPECT_LE((found - whole.narrow(2, 0, t)).abs().max().item<double>(), 1e-6)
          << shape.name() << ", prefix of " << t;
    }
  }
}

TEST(HybridAttention, IsSoftmaxUpToTheWindowAndItsFactorCancels) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    AttentionCase shape{.T = 64, .D = 64, .f = 32};
    shape.options.window = layout;
    const AttentionInputs inputs = make_inputs(shape);
    const at::Tensor softmax = softmax_attention_reference(
        inputs.q.to(at::kDouble), inputs.k.to(at::kDouble), inputs.v.to(at::kDouble));
    const Outcome ours = hybrid_outcome(shape, inputs);
    EXPECT_LT((ours.value - softmax).abs().max().item<double>(), 2e-6) << shape.name();
    EXPECT_EQ(ours.gradients[5].abs().max().item<double>(), 0.0) << "window_factors";
    EXPECT_EQ(ours.gradients[3].abs().max().item<double>(), 0.0) << "layer_q";
  }
}

// Values that name their token show which keys a query reads, and with what weight.
TEST(HybridAttention, ReadsEveryKeyOnceThroughItsOwnBranch) {
  const std::int64_t T = 48, W = 8;
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 1, .H = 1, .G = 1, .T = T, .D = T};
    shape.options.window = layout;
    shape.options.window_size = W;
    AttentionInputs inputs = make_inputs(shape);
    inputs.v = at::eye(T).reshape({1, 1, T, T});
    inputs.q
        .zero_();  // every score is 0 and every phi_q uniform: p = g, l depends on the key alone
    const at::Tensor g =
        at::sigmoid(inputs.parameters.window_factors.defined() ? inputs.parameters.window_factors
                                                               : at::zeros({1}));
    const at::Tensor phi_q =
        apply_feature_map(inputs.q, inputs.parameters.q, shape.options, 1, FeatureMapRole::kQuery);
    const at::Tensor phi_k =
        apply_feature_map(inputs.k, inputs.parameters.k, shape.options, 1, FeatureMapRole::kKey);
    const at::Tensor l = at::matmul(phi_q, phi_k.transpose(-1, -2))[0][0];
    const at::Tensor y = attend(inputs, shape.options)[0][0];
    for (std::int64_t i = 0; i < T; ++i) {
      at::Tensor weights = at::zeros({T});
      for (std::int64_t j = 0; j <= i; ++j) {
        const bool window = layout == WindowLayout::kSliding    ? i - j < W
                            : layout == WindowLayout::kTerraced ? i / W - j / W <= 1
                                                                : false;
        weights[j] = window ? g[0] : l[i][j];
      }
      const double error = (y[i] - weights / weights.sum()).abs().max().item<double>();
      EXPECT_LT(error, 1e-6) << shape.name() << ", query " << i;
    }
  }
}

Outcome fused_by_threads(int threads, const AttentionCase& shape, const AttentionInputs& inputs) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  const Outcome found = hybrid_outcome(shape, inputs);
  at::set_num_threads(before);
  return found;
}

void expect_same_bytes(const Outcome& one, const Outcome& other, const std::string& what) {
  EXPECT_TRUE(at::equal(one.value, other.value)) << what;
  for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
    if (one.gradients[i].defined()) {
      EXPECT_TRUE(at::equal(one.gradients[i], other.gradients[i]))
          << what << ", d" << kLeafNames[i];
    }
  }
}

TEST(HybridAttention, GivesTheSameBytesForAnyNumberOfThreads) {
  const AttentionCase shape{.B = 3, .T = 150, .dtype = at::kBFloat16};
  const AttentionInputs inputs = make_inputs(shape);
  expect_same_bytes(
      fused_by_threads(1, shape, inputs), fused_by_threads(5, shape, inputs), shape.name());
}

// Three heads of three segments each, with a key map each or one for all, and sinks: one thread
// walks heads, two walk a head each and share the third, five share all. Windows of one, of less
// than one and of more than one tile; the last chunk is short, and with W = 64 the last segment is.
// (Long sequences are held to the reference elsewhere.)
TEST(HybridAttention, GivesTheSameBytesHoweverThreadsShareItsSegments) {
  for (const WindowLayout layout : kLayouts) {
    for (const std::int64_t window : {64, 20, 96}) {
      AttentionCase shape{.B = 1, .H = 3, .G = 1, .T = window == 96 ? 3300 : 2070};
      shape.shares_key_maps = window == 20;
      shape.options.window = layout;
      shape.options.window_size = window;
      shape.options.num_sinks = layout == WindowLayout::kNone || window == 96 ? 0 : 5;
      const AttentionInputs inputs = make_inputs(shape);
      const Outcome one = fused_by_threads(1, shape, inputs);
      for (const int threads : {2, 5}) {
        expect_same_bytes(one,
                          fused_by_threads(threads, shape, inputs),
                          shape.name() + ", threads " + std::to_string(threads));
      }
    }
  }
}

// torch.ops.hedgerow.hybrid_attention_backward has no states to give.
TEST(HybridAttention, SumsTheStatesOfItsSegmentsAgainWhereItsBackwardIsNotGivenThem) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 2070};
    shape.options.window = layout;
    const AttentionInputs x = make_inputs(shape);
    const HybridProblem problem = make_hybrid_problem(x.q, x.k, x.v, x.parameters, shape.options);
    const auto backward = [&](const HybridForward& forward) {
      const HybridNeeds needs{.q = true, .k = true, .v = true, .map_q = true, .map_k = true};
      return hybrid_backward(Backend::kCpu, problem, forward, x.dy, needs);
    };
    HybridForward forward = hybrid_forward(Backend::kCpu, problem, true);
    ASSERT_TRUE(forward.saved.at(0).defined()) << shape.name();
    const HybridGradients given = backward(forward);
    forward.saved.clear();
    const HybridGradients summed = backward(forward);
    EXPECT_TRUE(at::equal(given.q, summed.q)) << shape.name();
    EXPECT_TRUE(at::equal(given.k, summed.k)) << shape.name();
    EXPECT_TRUE(at::equal(given.map_q.layer, summed.map_q.layer)) << shape.name();
  }
}

TEST(HybridAttention, PropagatesNanFromEveryInput) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 150};
    shape.options.window = layout;
    shape.options.window_size = 16;
    for (int which = 0; which < 3; ++which) {
      AttentionInputs inputs = make_inputs(shape);
      at::Tensor& x = which == 0 ? inputs.q : (which == 1 ? inputs.k : inputs.v);
      x.narrow(2, 70, 1).fill_(NAN);
      const at::Tensor bad = attend(inputs, shape.options).isnan().all(-1);
      EXPECT_TRUE(bad.narrow(2, 70, 1).all().item<bool>()) << shape.name() << ", input " << which;
      EXPECT_FALSE(bad.narrow(2, 0, 64).any().item<bool>()) << shape.name() << ", input " << which;
      if (which > 0) {
        EXPECT_TRUE(bad.narrow(2, 70, 80).all().item<bool>())
            << shape.name() << ", input " << which;
      }
    }
  }
}

TEST(HybridAttention, MeasuresTheLinearBranchesShare) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.T = 100};
    shape.options.window = layout;
    shape.options.window_size = 16;
    AttentionInputs inputs = make_inputs(shape).as(at::kDouble, at::kDouble);
    const at::Tensor share = linear_share(
        inputs.q.to(at::kFloat), inputs.k.to(at::kFloat), inputs.parameters, shape.options);
    const HybridWeights weights =
        hybrid_weights_reference(inputs.q, inputs.k, {}, inputs.parameters, shape.options);
    const at::Tensor exact =
        (weights.linear.sum(-1, true) / weights.denominator).mean({0, 2, 3}).detach();
    EXPECT_LT((share - exact).abs().max().item<double>(), 1e-6) << shape.name();
    const at::Tensor in_double = linear_share(inputs.q, inputs.k, inputs.parameters, shape.options);
    EXPECT_TRUE(at::equal(in_double, exact)) << shape.name();
  }
}

std::string message_of(const AttentionInputs& inputs) {
  try {
    attend(inputs, {});
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(HybridAttentionErrors, AreOneSentenceWithTheArgumentAndBothValues) {
  const AttentionInputs x = make_inputs({});
  AttentionInputs bad = x;
  bad.k = x.k.narrow(2, 0, 64);
  EXPECT_THAT(message_of(bad),
              ::testing::HasSubstr("k must have q's batch, tokens and head_dim, expected [2, G, "
                                   "65, 16], found [2, 2, 64, 16]"));
  bad = x;
  bad.v = x.v.to(at::kBFloat16);
  EXPECT_THAT(message_of(bad), ::testing::HasSubstr("v must have q's dtype Float, found BFloat16"));
  bad = x;
  bad.k = at::zeros({2, 3, 65, 16});
  EXPECT_THAT(message_of(bad),
              ::testing::HasSubstr("the number of heads of k must divide q's 4, found 3"));
  bad = x;
  bad.q = x.q.to(at::kHalf);
  EXPECT_THAT(message_of(bad), ::testing::HasSubstr("q must be float32 or bfloat16, found Half"));
  bad = x;
  bad.q = x.q.to(at::kMeta);
  EXPECT_THAT(message_of(bad), ::testing::HasSubstr("k must be on q's device meta, found cpu"));
  bad = x;
  bad.q = x.q.narrow(0, 0, 0);
  EXPECT_THAT(message_of(bad),
              ::testing::HasSubstr("q must hold at least one sequence, found [0, 4, 65, 16]"));
}

TEST(HybridAttentionErrors, NameTheParameterThatDoesNotFit) {
  const AttentionInputs x = make_inputs({});
  AttentionInputs bad = x;
  bad.parameters.q.layer = at::zeros({4, 17, 8});
  EXPECT_THAT(message_of(bad),
              ::testing::HasSubstr(
                  "the query map's layer must be [H, D, f] = [4, 16, f], found [4, 17, 8]"));
  bad = x;
  bad.parameters.k.layer = at::zeros({4, 16, 9});
  EXPECT_THAT(message_of(bad), ::testing::HasSubstr("found 16 for queries and 18 for keys"));
  bad = x;
  bad.parameters.k.layer = at::zeros({4, 16, 8}, at::kInt);
  EXPECT_THAT(message_of(bad),
              ::testing::HasSubstr("the key map's layer must be of a floating dtype, found Int"));
  bad = x;
  bad.parameters.q.layer = x.parameters.q.layer.to(at::kMeta);
  EXPECT_THAT(message_of(bad),
              ::testing::HasSubstr("the query map's layer must be on q's device cpu, found meta"));
  bad = x;
  bad.parameters.q.bias = at::zeros({4, 9});
  EXPECT_THAT(message_of(bad),
              ::testing::HasSubstr("the query map's bias must be [H, f] = [4, 8], found [4, 9]"));
  bad = x;
  bad.parameters.window_factors = at::Tensor();
  EXPECT_THAT(message_of(bad), ::testing::HasSubstr("window_factors must be defined"));
  bad = x;
  bad.parameters.window_factors = at::zeros({3});
  EXPECT_THAT(message_of(bad),
              ::testing::HasSubstr("window_factors must hold one logit a head [4], found [3]"));
}

}  // namespace
}  // namespace hedgerow::kernels
