// The decode step with a recall cache by the CUDA kernels, against the ATen backend on the same
// bf16 inputs. Catches: another choice, a key in both branches or in none, a sliding window's token
// that joins though the cache holds it, entries that are overwritten before they are read, a choice
// that depends on the batch. Prompts are prefilled by the ATen backend, as CUDA's entry does.
#include <c10/core/GradMode.h>

#include "kernels/problem/recall_cache.hpp"
#include "tests/kernels/cuda/cuda_decode.hpp"

namespace hedgerow::kernels::testing {
namespace {

constexpr WindowLayout kWindows[] = {WindowLayout::kTerraced, WindowLayout::kSliding};

AttentionCase recall_case(WindowLayout layout, std::int64_t T) {
  AttentionCase shape{.B = 3, .H = 4, .G = 2, .T = T, .D = 64, .f = 8, .dtype = at::kBFloat16};
  shape.options.window = layout;
  shape.options.window_size = 8;
  shape.options.recall_cache = 5;
  return shape;
}

std::string name_of(const AttentionCase& shape) {
  return shape.name() + ", sinks " + std::to_string(shape.options.num_sinks) + ", recall " +
         std::to_string(shape.options.recall_cache);
}

// Rows of the lengths given.
DecodeState prefilled(const AttentionCase& shape,
                      const AttentionInputs& x,
                      const std::vector<std::int64_t>& lengths) {
  return prefill_state(x.k, x.v, at::tensor(lengths), x.parameters, shape.options, Backend::kAten);
}

AttentionInputs row_of(const AttentionInputs& x, std::int64_t b) {
  AttentionInputs own = x;
  for (at::Tensor* value : {&own.q, &own.k, &own.v}) *value = value->narrow(0, b, 1);
  return own;
}

at::Tensor aten_step(const AttentionCase& shape,
                     const AttentionInputs& x,
                     std::int64_t t,
                     DecodeState& state) {
  return decode_step(x.q.select(2, t),
                     x.k.select(2, t),
                     x.v.select(2, t),
                     state,
                     x.parameters,
                     shape.options,
                     Backend::kAten);
}

void expect_same_state(const DecodeState& ours,
                       const DecodeState& theirs,
                       const std::string& what) {
  EXPECT_TRUE(at::equal(ours.positions.cpu(), theirs.positions)) << what;
  ASSERT_TRUE(at::equal(ours.recall_positions.cpu(), theirs.recall_positions))
      << what << "\n"
      << ours.recall_positions.cpu() << "\n"
      << theirs.recall_positions;
  EXPECT_TRUE(at::equal(ours.recall_k.cpu(), theirs.recall_k)) << what;
  EXPECT_TRUE(at::equal(ours.recall_v.cpu(), theirs.recall_v)) << what;
  EXPECT_TRUE(at::equal(ours.window_k.cpu(), theirs.window_k)) << what;
  EXPECT_TRUE(at::allclose(ours.kv_state.cpu(), theirs.kv_state, 1e-4, 1e-5))
      << what << ": " << (ours.kv_state.cpu() - theirs.kv_state).abs().max().item<double>();
  EXPECT_TRUE(at::allclose(ours.k_state.cpu(), theirs.k_state, 1e-4, 1e-5)) << what;
}

}  // namespace

void CudaRecall::expect_steps(const AttentionCase& shape,
                              const std::vector<std::int64_t>& lengths,
                              std::int64_t steps) const {
  const c10::NoGradGuard no_grad;
  const AttentionInputs inputs = make_inputs(shape), x = on_device(inputs);
  DecodeState ours = prefilled(shape, x, lengths), theirs = prefilled(shape, inputs, lengths);
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t t = shape.T - steps + step;
    const std::string what = name_of(shape) + ", step " + std::to_string(step);
    const at::Tensor y = decode(shape, x, t, t + 1, ours).squeeze(2).cpu().to(at::kFloat);
    const at::Tensor expected = aten_step(shape, inputs, t, theirs).to(at::kFloat);
    EXPECT_TRUE(at::allclose(y, expected, 0.01, 1e-4))
        << what << ": " << (y - expected).abs().max().item<double>();
    expect_same_state(ours, theirs, what);
    if (HasFatalFailure()) return;
  }
}

namespace {

// From the first token on too: rows begin chunks at steps of their own, and each makes several
// choices. No token comes twice: of equal scores ATen's products may round one the other way.
TEST_P(CudaRecall, StepsChooseAndGiveWhatTheAtenBackendGives) {
  for (const WindowLayout layout : kWindows) {
    for (const bool shares : {false, true}) {
      for (const std::int64_t recall : {1, 5, 8}) {
        AttentionCase shape = recall_case(layout, 56);
        shape.B = 2;
        shape.shares_key_maps = shares;
        shape.bias = shares;
        shape.options.recall_cache = recall;
        shape.options.linear_cap = recall == 5 ? 6 : 0;
        shape.options.num_sinks = shares == (recall == 5) ? 2 : 0;
        expect_steps(shape, {1, 22}, 34);
      }
    }
  }
}

TEST_P(CudaRecall, ChoosesWhatTheWholeSequenceChooses) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kWindows) {
    AttentionCase shape = recall_case(layout, 57);
    shape.B = 1;
    shape.options.num_sinks = 2;
    const AttentionInputs inputs = make_inputs(shape), x = on_device(inputs);
    DecodeState state = empty_state(shape, x);
    const at::Tensor y = decode(shape, x, 0, shape.T, state).cpu().to(at::kFloat);
    at::Tensor kept;
    const at::Tensor whole =
        recall_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options, &kept);
    EXPECT_TRUE(at::equal(state.recall_positions.cpu(), kept[-1])) << name_of(shape);
    EXPECT_TRUE(at::allclose(y, whole.to(at::kFloat), 0.01, 1e-4)) << name_of(shape);
  }
}

// More candidates than a threadblock scores in one turn, more dropped keys than a tile of the fold,
// as many entries as tokens; both head_dims, features of every number of passes.
TEST_P(CudaRecall, HoldsForHeadDimsColumnsGroupsAndWindows) {
  struct Sizes {
    std::int64_t H, G, D, f, window, recall;
    bool negation = true;
  };
  for (const Sizes sizes : {Sizes{5, 1, 128, 64, 40, 16},
                            Sizes{2, 2, 64, 12, 64, 64},
                            Sizes{2, 1, 128, 256, 20, 9, false},
                            Sizes{3, 1, 64, 100, 128, 128}}) {
    for (const WindowLayout layout : kWindows) {
      AttentionCase shape = recall_case(layout, 4 * sizes.window + 3);
      shape.B = 1;
      shape.H = sizes.H;
      shape.G = sizes.G;
      shape.D = sizes.D;
      shape.f = sizes.f;
      shape.shares_key_maps = layout == WindowLayout::kSliding;
      shape.options.window_size = sizes.window;
      shape.options.recall_cache = sizes.recall;
      shape.options.num_sinks = 3;
      shape.options.negation = sizes.negation;
      expect_steps(shape, {4 * sizes.window - 1}, 4);
    }
  }
}

TEST_P(CudaRecall, GivesARowOfARaggedBatchTheBytesThatItGivesAlone) {
  const c10::NoGradGuard no_grad;
  const std::vector<std::int64_t> lengths = {5, 31, 17, 23, 1, 16, 15, 30, 24};
  for (const WindowLayout layout : kWindows) {
    for (const bool shares : {false, true}) {
      AttentionCase shape = recall_case(layout, 44);
      shape.B = 9;
      shape.shares_key_maps = shares;
      const AttentionInputs x = on_device(make_inputs(shape));
      DecodeState together = prefilled(shape, x, lengths);
      std::vector<DecodeState> rows;
      for (std::int64_t b = 0; b < shape.B; ++b) {
        const auto row = [b](const at::Tensor& all) { return all.narrow(0, b, 1).clone(); };
        rows.push_back({.kv_state = row(together.kv_state),
                        .k_state = row(together.k_state),
                        .window_k = row(together.window_k),
                        .window_v = row(together.window_v),
                        .positions = row(together.positions),
                        .recall_k = row(together.recall_k),
                        .recall_v = row(together.recall_v),
                        .recall_positions = row(together.recall_positions)});
      }
      const at::Tensor y = decode(shape, x, 32, 41, together);
      for (const std::int64_t b : {0, 1, 3, 5}) {
        DecodeState& alone = rows[static_cast<std::size_t>(b)];
        EXPECT_TRUE(at::equal(y.narrow(0, b, 1), decode(shape, row_of(x, b), 32, 41, alone)))
            << name_of(shape) << ", row " << b;
        EXPECT_TRUE(at::equal(together.kv_state[b], alone.kv_state[0])) << name_of(shape);
        EXPECT_TRUE(at::equal(together.k_state[b], alone.k_state[0])) << name_of(shape);
        EXPECT_TRUE(at::equal(together.recall_k[b], alone.recall_k[0])) << name_of(shape);
        EXPECT_TRUE(at::equal(together.recall_positions[b], alone.recall_positions[0]))
            << name_of(shape);
      }
    }
  }
}

// Emulated, the order of threadblocks, warps and lanes is another one in every launch. What entries
// without a key hold is not read.
TEST_P(CudaRecall, GivesTheSameBytesFromRunToRunWhateverEmptyEntriesHold) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kWindows) {
    AttentionCase shape = recall_case(layout, 42);
    shape.B = 1;
    const AttentionInputs x = on_device(make_inputs(shape));
    const auto run = [&](double empty) {
      DecodeState state = empty_state(shape, x);
      state.recall_k.fill_(empty);
      state.recall_v.fill_(empty);
      return std::pair{decode(shape, x, 0, 42, state), state};
    };
    const auto [one, state] = run(0.0);
    const auto [again, same] = run(NAN);
    EXPECT_TRUE(at::equal(one, again) && at::equal(state.kv_state, same.kv_state))
        << name_of(shape);
    EXPECT_TRUE(at::equal(state.recall_positions, same.recall_positions)) << name_of(shape);
    EXPECT_TRUE(at::equal(state.recall_v, same.recall_v)) << name_of(shape);
  }
}

// A terraced window's state and cache change where a chunk begins, and nowhere else.
TEST_P(CudaRecall, WritesNothingThatAStepDoesNotChange) {
  const c10::NoGradGuard no_grad;
  const AttentionCase shape = recall_case(WindowLayout::kTerraced, 44);
  const AttentionInputs x = on_device(make_inputs(shape));
  DecodeState state = prefilled(shape, x, {20, 20, 20});
  for (std::int64_t t = 20; t < 34; ++t) {
    const at::Tensor kv_state = state.kv_state.clone(), held = state.recall_positions.clone();
    decode(shape, x, t, t + 1, state);
    EXPECT_EQ(at::equal(kv_state, state.kv_state), t % 8 != 0) << "token " << t;
    EXPECT_TRUE(t % 8 == 0 || at::equal(held, state.recall_positions)) << "token " << t;
  }
}

TEST_P(CudaRecall, OfEquallyRecalledKeysTheEarlierStay) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kWindows) {
    AttentionCase shape = recall_case(layout, 42);
    shape.B = 1;
    shape.options.num_sinks = 2;
    AttentionInputs inputs = make_inputs(shape);
    for (at::Tensor* value : {&inputs.k, &inputs.v}) {
      value->copy_(value->narrow(2, 0, 1).expand_as(*value).clone());
    }
    const AttentionInputs x = on_device(inputs);
    DecodeState state = empty_state(shape, x);
    decode(shape, x, 0, shape.T, state);
    const at::Tensor held = state.recall_positions.cpu();
    EXPECT_TRUE(at::equal(held, at::arange(2, 7, at::kLong).expand_as(held)))
        << name_of(shape) << held;
  }
}

// Ranks stay an order: such a key takes an entry, and none is written beyond the cache. (In ATen
// operations it spoils the state, where 0 times it is added.)
TEST_P(CudaRecall, AValueThatIsNoNumberTakesOneEntry) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kWindows) {
    AttentionCase shape = recall_case(layout, 42);
    shape.B = 1;
    AttentionInputs inputs = make_inputs(shape);
    for (const std::int64_t token : {9, 12, 15}) inputs.v.select(2, token).fill_(NAN);
    const AttentionInputs x = on_device(inputs);
    DecodeState state = empty_state(shape, x);
    decode(shape, x, 0, shape.T, state);
    const at::Tensor held = state.recall_positions.cpu();
    EXPECT_TRUE(held.diff().gt(0).all().item<bool>()) << name_of(shape) << held;
    for (const std::int64_t token : {9, 12, 15}) {
      EXPECT_TRUE(held.eq(token).sum(2).eq(1).all().item<bool>()) << name_of(shape) << held;
    }
    EXPECT_TRUE(state.kv_state.isfinite().all().item<bool>()) << name_of(shape);
  }
}

TEST_P(CudaRecall, SaysWhichWindowsAndPromptsItDoesNotTake) {
  const c10::NoGradGuard no_grad;
  AttentionCase shape = recall_case(WindowLayout::kSliding, 20);
  shape.options.window_size = 129;
  const AttentionInputs x = on_device(make_inputs(shape));
  DecodeState state = empty_state(shape, x);
  EXPECT_THAT(refusal([&] { decode(shape, x, 0, 1, state); }),
              ::testing::HasSubstr("a recall cache from windows of at most 128 tokens, not 129"));
  shape.options.recall_cache = 0;
  state = empty_state(shape, x);
  EXPECT_EQ(refusal([&] { decode(shape, x, 0, 1, state); }), "nothing");
  shape.options.window_size = 8;
  shape.options.recall_cache = 5;
  const at::Tensor lengths = at::full({shape.B}, shape.T, at::kLong);
  EXPECT_THAT(
      refusal(
          [&] { prefill_state(x.k, x.v, lengths, x.parameters, shape.options, Backend::kCuda); }),
      ::testing::HasSubstr("no CUDA kernel prefills with a recall cache; found recall_cache 5"));
}

}  // namespace
}  // namespace hedgerow::kernels::testing
