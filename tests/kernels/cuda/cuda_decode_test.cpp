#include "tests/kernels/cuda/cuda_decode.hpp"

#include <c10/core/GradMode.h>

namespace hedgerow::kernels::testing {

DecodeState CudaDecode::empty_state(const AttentionCase& shape, const AttentionInputs& x) const {
  return make_decode_state(shape.B,
                           shape.shares_key_maps ? shape.G : shape.H,
                           shape.G,
                           shape.D,
                           feature_dim(x.parameters.q, shape.options, shape.D),
                           at::kBFloat16,
                           GetParam(),
                           shape.options);
}

at::Tensor CudaDecode::decode(const AttentionCase& shape,
                              const AttentionInputs& x,
                              std::int64_t begin,
                              std::int64_t end,
                              DecodeState& state) {
  std::vector<at::Tensor> rows;
  for (std::int64_t t = begin; t < end; ++t) {
    rows.push_back(decode_step(x.q.select(2, t),
                               x.k.select(2, t),
                               x.v.select(2, t),
                               state,
                               x.parameters,
                               shape.options,
                               Backend::kCuda));
  }
  return at::stack(rows, 2);
}

void CudaDecode::expect_continuation(const AttentionCase& shape,
                                     const AttentionInputs& inputs,
                                     std::int64_t split,
                                     std::int64_t end) const {
  const c10::NoGradGuard no_grad;
  const AttentionInputs x = on_device(inputs), exact = inputs.as(at::kDouble, at::kDouble);
  const std::int64_t B = shape.B;
  DecodeState state = split == 0 ? empty_state(shape, x)
                                 : prefill_state(x.k.narrow(2, 0, split),
                                                 x.v.narrow(2, 0, split),
                                                 at::full({B}, split, at::kLong),
                                                 x.parameters,
                                                 shape.options,
                                                 Backend::kCuda);
  const at::Tensor y = decode(shape, x, split, end, state);
  const auto full = [&](const AttentionInputs& z) {
    return hybrid_attention_reference(z.q, z.k, z.v, z.parameters, shape.options)
        .narrow(2, split, end - split);
  };
  expect_within_twice(
      y.cpu(), full(inputs), full(exact), shape.name() + ", split at " + std::to_string(split));
  EXPECT_TRUE(at::equal(state.positions.cpu(), at::full({B}, end, at::kLong))) << shape.name();
}

namespace {

AttentionCase short_window(WindowLayout layout, std::int64_t T) {
  AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = T, .D = 64, .f = 8, .dtype = at::kBFloat16};
  shape.options.window = layout;
  shape.options.window_size = 8;
  return shape;
}

// With sinks: one that leaves the window as any token, as many as the window holds; a state of each
// query head and one of all, more of them than a threadblock walks.
TEST_P(CudaDecode, ContinuesThePrefillWithSinksAndKeyMapsOfKvHeads) {
  for (const WindowLayout layout : kWindowLayouts) {
    for (const std::int64_t num_sinks : {0, 1, 4, 8}) {
      for (const bool shares : {false, true}) {
        if (layout == WindowLayout::kNone && num_sinks > 0) continue;
        if (num_sinks == 0 && !shares) continue;
        AttentionCase shape = short_window(layout, 40);
        shape.options.num_sinks = num_sinks;
        shape.options.linear_cap = shares && layout != WindowLayout::kNone ? 6 : 0;
        shape.shares_key_maps = shares;
        shape.H = num_sinks == 4 ? 5 : 4;
        shape.G = num_sinks == 4 ? 1 : 2;
        shape.D = num_sinks == 4 ? 128 : 64;
        shape.bias = num_sinks == 8;
        const AttentionInputs inputs = make_inputs(shape);
        expect_continuation(shape, inputs, 0, 40);
        for (const std::int64_t split : {1, 7, 8, 16, 17}) {
          expect_continuation(shape, inputs, split, split + 10);
        }
      }
    }
  }
}

// Every state that a step can begin in: empty, window not full, at a border, after a flush.
TEST_P(CudaDecode, ContinuesThePrefillFromAnySplitAsTheFullForward) {
  for (const WindowLayout layout : kWindowLayouts) {
    const AttentionCase shape = short_window(layout, 40);
    const AttentionInputs inputs = make_inputs(shape);
    expect_continuation(shape, inputs, 0, 40);
    for (const std::int64_t split : {1, 7, 8, 9, 15, 16, 17, 24, 30}) {
      expect_continuation(shape, inputs, split, split + 10);
    }
  }
}

TEST_P(CudaDecode, StaysWithinTwiceThePlainErrorForHeadDimsColumnsAndGroups) {
  struct Sizes {
    std::int64_t B, H, G, D, f;
    bool negation = true;
  };
  std::size_t next = 0;
  for (const Sizes sizes : {Sizes{1, 3, 3, 64, 32},
                            Sizes{1, 3, 1, 64, 12},
                            Sizes{1, 5, 1, 128, 64},
                            Sizes{1, 8, 1, 128, 20},
                            Sizes{1, 1, 1, 128, 128},
                            Sizes{16, 4, 1, 64, 16},
                            Sizes{1, 2, 1, 64, 256, false},
                            Sizes{1, 2, 2, 128, 100, false}}) {
    for (int turn = 0; turn < 2; ++turn) {
      AttentionCase shape = short_window(kWindowLayouts[next++ % 3], 30);
      shape.B = sizes.B;
      shape.H = sizes.H;
      shape.G = sizes.G;
      shape.D = sizes.D;
      shape.f = sizes.f;
      shape.options.negation = sizes.negation;
      shape.bias = turn == 0;
      expect_continuation(shape, make_inputs(shape), 23, 26);
    }
  }
}

TEST_P(CudaDecode, StaysWithinTwiceThePlainErrorForEveryMap) {
  for (const FeatureMapRow& row : kFeatureMaps) {
    if (!row.is_activation() || !row.positive) continue;
    for (const bool negation : {false, true}) {
      for (const std::int64_t f : {0, 24}) {
        if (negation && !row.negation) {
          continue;
        }
        AttentionCase shape =
            short_window(f == 0 ? WindowLayout::kSliding : WindowLayout::kTerraced, 30);
        shape.f = f;
        shape.bias = f != 0;
        shape.options.set_map({.feature_map = row.value,
                               .negation = negation,
                               .temperature = row.temperature ? 1.5 : 1.0});
        expect_continuation(shape, make_inputs(shape), 22, 27);
      }
    }
  }
}

// A chunk of more keys than a tile of the flush, windows of more keys than a threadblock meets in
// one turn, and the smallest ones.
TEST_P(CudaDecode, StaysWithinTwiceThePlainErrorForAnyWindow) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const std::int64_t window : {1, 5, 40, 64}) {
      AttentionCase shape = short_window(layout, 300);
      shape.options.window_size = window;
      const std::int64_t border = (100 / window + 3) * window;
      expect_continuation(shape, make_inputs(shape), border - 2, border + 3);
    }
  }
}

TEST_P(CudaDecode, HoldsAtExtremeLogits) {
  for (const WindowLayout layout : kWindowLayouts) {
    AttentionCase shape = short_window(layout, 40);
    shape.scale = 6.0;  // scores of standard deviation 36: the largest are beyond 80
    expect_continuation(shape, make_inputs(shape), 20, 40);
  }
}

// The shift of a Hedgehog map is the largest z, far below 0 too, and not that of columns beyond the
// map's.
TEST_P(CudaDecode, HoldsWhereEveryFeatureIsFarBelowZero) {
  for (const FeatureMapKind kind :
       {FeatureMapKind::kHedgehogSoftmax, FeatureMapKind::kHedgehogExp}) {
    AttentionCase shape = short_window(WindowLayout::kTerraced, 30);
    shape.f = 12;
    shape.bias = true;
    shape.options.feature_map = kind;
    AttentionInputs inputs = make_inputs(shape);
    inputs.parameters.q.bias.sub_(200.0);
    inputs.parameters.k.bias.sub_(200.0);
    expect_continuation(shape, inputs, 22, 27);
  }
}

// The same keys in the ring, the same sums to fp32's rounding: after a prompt, and after every
// step. (The CPU's own backend multiplies in bf16 where there is AMX.)
TEST_P(CudaDecode, LeavesTheStateThatTheAtenBackendLeaves) {
  const c10::NoGradGuard no_grad;
  for (const auto& [layout, with_sinks] : {std::pair{WindowLayout::kTerraced, false},
                                           std::pair{WindowLayout::kSliding, false},
                                           std::pair{WindowLayout::kNone, false},
                                           std::pair{WindowLayout::kTerraced, true},
                                           std::pair{WindowLayout::kSliding, true}}) {
    AttentionCase shape = short_window(layout, 40);
    shape.B = 2;
    shape.options.num_sinks = with_sinks ? 3 : 0;
    shape.shares_key_maps = with_sinks;
    const AttentionInputs inputs = make_inputs(shape), x = on_device(inputs);
    const at::Tensor lengths = at::tensor({13L, 20L});
    const auto prompt = [](const at::Tensor& y) { return y.narrow(2, 0, 20); };
    DecodeState ours = prefill_state(
        prompt(x.k), prompt(x.v), lengths, x.parameters, shape.options, Backend::kCuda);
    DecodeState theirs = prefill_state(prompt(inputs.k),
                                       prompt(inputs.v),
                                       lengths,
                                       inputs.parameters,
                                       shape.options,
                                       Backend::kAten);
    const auto expect_same = [&](std::int64_t step) {
      const std::string what = shape.name() + ", step " + std::to_string(step);
      EXPECT_TRUE(at::equal(ours.positions.cpu(), theirs.positions)) << what;
      if (layout != WindowLayout::kNone) {  // else nothing reads the ring
        EXPECT_TRUE(at::equal(ours.window_k.cpu(), theirs.window_k)) << what;
        EXPECT_TRUE(at::equal(ours.window_v.cpu(), theirs.window_v)) << what;
      }
      if (shape.options.num_sinks > 0) {
        EXPECT_TRUE(at::equal(ours.sink_k.cpu(), theirs.sink_k)) << what;
        EXPECT_TRUE(at::equal(ours.sink_v.cpu(), theirs.sink_v)) << what;
      }
      EXPECT_TRUE(at::allclose(ours.kv_state.cpu(), theirs.kv_state, 1e-5, 1e-6)) << what;
      EXPECT_TRUE(at::allclose(ours.k_state.cpu(), theirs.k_state, 1e-5, 1e-6)) << what;
    };
    expect_same(0);
    for (std::int64_t step = 0; step < 20; ++step) {
      const auto token = [&](const at::Tensor& y) { return y.select(2, 20 + step); };
      const at::Tensor y = decode_step(
          token(x.q), token(x.k), token(x.v), ours, x.parameters, shape.options, Backend::kCuda);
      const at::Tensor expected = decode_step(token(inputs.q),
                                              token(inputs.k),
                                              token(inputs.v),
                                              theirs,
                                              inputs.parameters,
                                              shape.options,
                                              Backend::kAten);
      EXPECT_TRUE(at::allclose(y.cpu().to(at::kFloat), expected.to(at::kFloat), 0.01, 1e-5))
          << shape.name() << ", step " << step;
      expect_same(step + 1);
    }
  }
}

// Rows flush and evict at their own steps, and a threadblock walks as many query heads as the batch
// is large: none of it may show. The padding holds what a careless reader would trip over.
TEST_P(CudaDecode, GivesARowOfARaggedBatchTheBytesThatItGivesAlone) {
  const c10::NoGradGuard no_grad;
  for (const auto& [layout, with_sinks] : {std::pair{WindowLayout::kTerraced, false},
                                           std::pair{WindowLayout::kSliding, false},
                                           std::pair{WindowLayout::kNone, false},
                                           std::pair{WindowLayout::kTerraced, true},
                                           std::pair{WindowLayout::kSliding, true}}) {
    AttentionCase shape = short_window(layout, 44);
    shape.options.num_sinks = with_sinks ? 8 : 0;
    shape.shares_key_maps = with_sinks;
    shape.B = 9;
    shape.H = 8;
    shape.G = 2;
    const AttentionInputs x = on_device(make_inputs(shape));
    const std::vector<std::int64_t> lengths = {5, 31, 17, 23, 1, 16, 15, 30, 24};
    at::Tensor k = x.k.narrow(2, 0, 32).clone(), v = x.v.narrow(2, 0, 32).clone();
    for (std::int64_t b = 0; b < shape.B; ++b) {
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      k[b].narrow(1, length, 32 - length).fill_(NAN);
      v[b].narrow(1, length, 32 - length).fill_(NAN);
    }
    DecodeState together =
        prefill_state(k, v, at::tensor(lengths), x.parameters, shape.options, Backend::kCuda);
    const at::Tensor y = decode(shape, x, 32, 35, together);
    for (const std::int64_t b : {0, 1, 3, 4}) {
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      AttentionInputs own = x;
      for (at::Tensor* value : {&own.q, &own.k, &own.v}) {
        *value = value->narrow(0, b, 1);
      }
      DecodeState alone = prefill_state(own.k.narrow(2, 0, length),
                                        own.v.narrow(2, 0, length),
                                        at::full({1}, length, at::kLong),
                                        x.parameters,
                                        shape.options,
                                        Backend::kCuda);
      EXPECT_TRUE(at::equal(y.narrow(0, b, 1), decode(shape, own, 32, 35, alone)))
          << shape.name() << ", row " << b;
      EXPECT_TRUE(at::equal(together.kv_state[b], alone.kv_state[0])) << shape.name();
      EXPECT_TRUE(at::equal(together.k_state[b], alone.k_state[0])) << shape.name();
      EXPECT_TRUE(at::equal(together.window_k[b], alone.window_k[0])) << shape.name();
    }
  }
}

// A step that reads and writes nothing but what it must: a terraced window's state changes at
// borders alone, and the ring in one slot.
TEST_P(CudaDecode, WritesNothingThatAStepDoesNotChange) {
  const c10::NoGradGuard no_grad;
  const AttentionCase shape = short_window(WindowLayout::kTerraced, 40);
  const AttentionInputs x = on_device(make_inputs(shape));
  DecodeState state = prefill_state(x.k.narrow(2, 0, 20),
                                    x.v.narrow(2, 0, 20),
                                    at::full({1}, 20L, at::kLong),
                                    x.parameters,
                                    shape.options,
                                    Backend::kCuda);
  for (std::int64_t t = 20; t < 34; ++t) {
    const at::Tensor kv_state = state.kv_state.clone(), ring = state.window_k.clone();
    decode(shape, x, t, t + 1, state);
    EXPECT_EQ(at::equal(kv_state, state.kv_state), t % 8 != 0) << "token " << t;
    ring.select(2, t % 16).copy_(x.k.select(2, t));
    EXPECT_TRUE(at::equal(ring, state.window_k)) << "token " << t;
  }
}

// Emulated, the order of threadblocks, warps and lanes is another one in every launch.
TEST_P(CudaDecode, GivesTheSameBytesFromRunToRun) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kWindowLayouts) {
    AttentionCase shape = short_window(layout, 60);
    shape.H = 4;
    const AttentionInputs x = on_device(make_inputs(shape));
    const auto run = [&] {
      DecodeState state = prefill_state(x.k.narrow(2, 0, 50),
                                        x.v.narrow(2, 0, 50),
                                        at::full({1}, 50L, at::kLong),
                                        x.parameters,
                                        shape.options,
                                        Backend::kCuda);
      return std::pair{decode(shape, x, 50, 58, state), state.kv_state};
    };
    const auto [one, state] = run();
    const auto [again, same] = run();
    EXPECT_TRUE(at::equal(one, again) && at::equal(state, same)) << shape.name();
  }
}

TEST_P(CudaDecode, TakesRowsOfAnyStrideAndAlignment) {
  const c10::NoGradGuard no_grad;
  const AttentionCase shape = short_window(WindowLayout::kSliding, 24);
  const AttentionInputs x = on_device(make_inputs(shape));
  const auto strided = [](const at::Tensor& y) {
    return y.transpose(1, 2).contiguous().transpose(1, 2);
  };
  const auto shifted = [](const at::Tensor& y) {  // one element after an aligned address
    at::Tensor wide = at::zeros({y.numel() + 1}, y.options());
    return wide.narrow(0, 1, y.numel()).view(y.sizes()).copy_(y);
  };
  const auto run = [&](const AttentionInputs& y) {
    DecodeState state = prefill_state(y.k.narrow(2, 0, 20),
                                      y.v.narrow(2, 0, 20),
                                      at::full({1}, 20L, at::kLong),
                                      y.parameters,
                                      shape.options,
                                      Backend::kCuda);
    return decode(shape, y, 20, 24, state);
  };
  const auto with = [&](const auto& change) {
    AttentionInputs y = x;
    for (at::Tensor* value : {&y.q, &y.k, &y.v}) {
      *value = change(*value);
    }
    return y;
  };
  const at::Tensor expected = run(x);
  EXPECT_TRUE(at::equal(expected, run(with(strided))));
  EXPECT_TRUE(at::equal(expected, run(with(shifted))));
  AttentionInputs y = x;
  y.parameters.k.layer = shifted(x.parameters.k.layer);
  EXPECT_TRUE(at::equal(expected, run(y)));
}

// A prompt's map without parameters knows its kv heads alone; the first step brings the query
// heads.
TEST_P(CudaDecode, LetsAMapWithoutParametersLearnItsQueryHeads) {
  AttentionCase shape = short_window(WindowLayout::kNone, 24);
  shape.H = 4;
  shape.G = 2;
  shape.f = 0;
  shape.options.set_map({.feature_map = FeatureMapKind::kEluPlusOne, .negation = false});
  expect_continuation(shape, make_inputs(shape), 17, 24);
}

TEST_P(CudaDecode, PropagatesNaNAsLongAsItsTokenIsRemembered) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kWindowLayouts) {
    const AttentionCase shape = short_window(layout, 40);
    for (const int which : {0, 1, 2}) {
      AttentionInputs inputs = make_inputs(shape);
      at::Tensor& value = which == 0 ? inputs.q : which == 1 ? inputs.k : inputs.v;
      value.select(2, 12).fill_(NAN);
      const AttentionInputs x = on_device(inputs);
      DecodeState state = prefill_state(x.k.narrow(2, 0, 10),
                                        x.v.narrow(2, 0, 10),
                                        at::full({1}, 10L, at::kLong),
                                        x.parameters,
                                        shape.options,
                                        Backend::kCuda);
      const at::Tensor nan = decode(shape, x, 10, 40, state).isnan().all(3).all(1).cpu()[0];
      for (std::int64_t t = 10; t < 40; ++t) {
        EXPECT_EQ(nan[t - 10].item<bool>(), which == 0 ? t == 12 : t >= 12)
            << shape.name() << ", " << kLeafNames[static_cast<std::size_t>(which)] << ", token "
            << t;
      }
    }
  }
}

TEST_P(CudaDecode, SaysInOneSentenceWhatItDoesNotTake) {
  const auto reason = [&](const AttentionCase& shape) {
    const AttentionInputs x = make_inputs(shape).as(shape.dtype, at::kFloat, GetParam());
    const at::Tensor lengths = at::full({shape.B}, shape.T, at::kLong);
    return refusal(
        [&] { prefill_state(x.k, x.v, lengths, x.parameters, shape.options, Backend::kCuda); });
  };
  AttentionCase shape = short_window(WindowLayout::kTerraced, 20);
  shape.dtype = at::kFloat;
  EXPECT_THAT(reason(shape), ::testing::HasSubstr("take bfloat16, not Float"));
  shape = short_window(WindowLayout::kTerraced, 20);
  shape.f = 130;
  EXPECT_THAT(reason(shape), ::testing::HasSubstr("maps of 130 and 130 columns and 260 features"));
  shape = short_window(WindowLayout::kTerraced, 20);
  shape.D = 32;
  EXPECT_THAT(reason(shape), ::testing::HasSubstr("no CUDA decode kernel for head_dim 32"));
  shape = short_window(WindowLayout::kTerraced, 20);
  shape.options.set_map({.feature_map = FeatureMapKind::kPositiveRandom, .negation = false});
  EXPECT_THAT(reason(shape), ::testing::HasSubstr("no positive random"));
}

}  // namespace
}  // namespace hedgerow::kernels::testing
