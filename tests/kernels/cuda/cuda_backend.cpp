#include "tests/kernels/cuda/cuda_backend.hpp"

#include <ATen/Context.h>

namespace hedgerow::kernels::testing {

void CudaBackend::SetUp() {
  if (GetParam() == at::kCUDA && !at::hasCUDA()) {
    GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

AttentionInputs make_bfloat16_inputs(const AttentionCase& shape) {
  AttentionInputs inputs = make_inputs(shape);
  for (at::Tensor* layer : {&inputs.parameters.q.layer, &inputs.parameters.k.layer}) {
    if (layer->defined()) {
      *layer = layer->to(at::kBFloat16).to(at::kFloat);
    }
  }
  return inputs;
}

AttentionCase small(WindowLayout layout, std::int64_t T) {
  AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = T, .D = 64, .f = 32, .dtype = at::kBFloat16};
  shape.options.window = layout;
  return shape;
}

namespace {

struct Outcomes {
  Outcome ours, plain, exact;

  Outcomes(const AttentionInputs& inputs, const Programs& programs, at::DeviceType device)
      : ours(differentiate(programs.ours, inputs.as(at::kBFloat16, at::kFloat, device))),
        plain(differentiate(programs.plain, inputs.as(at::kBFloat16, at::kFloat))),
        exact(differentiate(programs.exact, inputs.as(at::kDouble, at::kDouble))) {}
};

// 0 is the value, 1 .. the leaves' gradients.
const at::Tensor& at(const Outcome& outcome, std::size_t i) {
  return i == 0 ? outcome.value : outcome.gradients[i - 1];
}

}  // namespace

void CudaBackend::expect_programs(const AttentionCase& shape,
                                  const AttentionInputs& inputs,
                                  const Programs& programs) const {
  const Outcomes found(inputs, programs, GetParam());
  expect_outcome(shape, found.ours, found.plain, found.exact);
}

void CudaBackend::expect_programs(const AttentionCase& shape,
                                  const Programs& programs,
                                  std::uint64_t draws) const {
  const std::size_t count = kLeafNames.size() + 1;
  std::vector<double> ours(count), plain(count), largest(count);
  for (std::uint64_t draw = 0; draw < draws; ++draw) {
    AttentionCase drawn = shape;
    drawn.seed += draw;
    const Outcomes found(make_bfloat16_inputs(drawn), programs, GetParam());
    for (std::size_t i = 0; i < count; ++i) {
      const at::Tensor &exact = at(found.exact, i), &value = at(found.ours, i);
      ASSERT_EQ(value.defined(), exact.defined()) << drawn.name() << ", leaf " << i;
      if (exact.defined()) {
        const auto largest_of = [](const at::Tensor& x) { return x.abs().max().item<double>(); };
        const double error = largest_of(value - exact);
        ours[i] = ours[i] >= error ? ours[i] : error;  // a NaN stays
        plain[i] = std::max(plain[i], largest_of(at(found.plain, i) - exact));
        largest[i] = std::max(largest[i], largest_of(exact));
      }
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    // A gradient that cancels to 0 keeps the last bits of a GPU's ex2.approx: 1.04e-6 on an H100.
    EXPECT_LE(ours[i], 2.0 * plain[i] + 2e-6 * std::max(1.0, largest[i]))
        << shape.name() << ", " << (i == 0 ? "value" : "d" + kLeafNames[i - 1]);
  }
}

void CudaBackend::expect_lengths(ProgramsOf programs_of,
                                 const std::vector<std::int64_t>& lengths) const {
  for (const WindowLayout layout : kWindowLayouts) {
    for (const std::int64_t T : lengths) {
      AttentionCase shape = small(layout, T);
      shape.H = T == 65 ? 8 : 2;  // its last token has the only linear pair of a head
      expect_programs(shape, programs_of(shape));
    }
  }
}

void CudaBackend::expect_windows(ProgramsOf programs_of,
                                 std::int64_t T,
                                 const std::vector<std::int64_t>& windows) const {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const std::int64_t window : windows) {
      AttentionCase shape = small(layout, T);
      shape.options.window_size = window;
      expect_programs(shape, programs_of(shape));
    }
  }
}

void CudaBackend::expect_sizes(ProgramsOf programs_of, std::uint64_t draws) const {
  struct Sizes {
    std::int64_t H, G, D, f;
    bool negation = true;
  };
  std::size_t next = 0;
  for (const Sizes sizes : {Sizes{3, 3, 64, 32},
                            Sizes{3, 1, 64, 64},
                            Sizes{2, 2, 64, 128},
                            Sizes{4, 1, 128, 32},
                            Sizes{8, 1, 128, 64},
                            Sizes{2, 1, 128, 128},
                            Sizes{4, 2, 64, 64, false},
                            Sizes{2, 1, 64, 128, false},
                            Sizes{2, 1, 128, 64, false},
                            Sizes{2, 1, 128, 128, false}}) {
    AttentionCase shape = small(kWindowLayouts[next++ % 3], 150);
    shape.H = sizes.H;
    shape.G = sizes.G;
    shape.D = sizes.D;
    shape.f = sizes.f;
    shape.bias = sizes.D == 64;
    shape.options.negation = sizes.negation;
    expect_programs(shape, programs_of(shape), draws);
  }
}

void CudaBackend::expect_maps(ProgramsOf programs_of) const {
  for (const FeatureMapRow& row :
       kFeatureMaps) {  // each activation once; the default is everywhere
    if (!row.is_activation() || !row.positive || row.activation != row.value) continue;
    if (row.value == FeatureMapOptions{}.feature_map) continue;
    AttentionCase shape = small(WindowLayout::kTerraced, 150);
    shape.f = 64;
    shape.bias = true;
    shape.options.set_map(
        {.feature_map = row.value, .negation = false, .temperature = row.temperature ? 1.5 : 1.0});
    expect_programs(shape, programs_of(shape));
  }
}

void CudaBackend::expect_segments(ProgramsOf programs_of) const {
  AttentionCase shape = small(WindowLayout::kSliding, 1000);
  shape.H = 1;
  expect_programs(shape, programs_of(shape));
}

void CudaBackend::expect_extreme_logits(ProgramsOf programs_of) const {
  for (const WindowLayout layout : kWindowLayouts) {
    AttentionCase shape = small(layout, 150);
    shape.scale = 6.0;  // scores of standard deviation 36: the largest are beyond 80
    expect_programs(shape, programs_of(shape));
  }
}

void CudaBackend::expect_shared_key_maps(ProgramsOf programs_of) const {
  for (const WindowLayout layout : kWindowLayouts) {
    for (const std::int64_t T : {150, 330}) {
      AttentionCase shape = small(layout, T);
      shape.H = T == 150 ? 6 : 3;
      shape.G = T == 150 ? 2 : 1;
      shape.bias = T == 150;
      shape.shares_key_maps = true;
      expect_programs(shape, programs_of(shape));
    }
  }
}

void CudaBackend::expect_sinks(ProgramsOf programs_of) const {
  struct Sinks {
    std::int64_t window, count, T;
    bool shares_key_maps;
  };
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const Sinks sinks : {Sinks{16, 1, 17, false},
                              Sinks{16, 16, 150, true},
                              Sinks{20, 3, 200, false},
                              Sinks{64, 4, 65, true},
                              Sinks{64, 4, 330, true},
                              Sinks{64, 64, 200, false},
                              Sinks{128, 100, 330, true}}) {
      AttentionCase shape = small(layout, sinks.T);
      shape.options.window_size = sinks.window;
      shape.options.num_sinks = sinks.count;
      shape.options.linear_cap = sinks.shares_key_maps ? 30 : 0;
      shape.shares_key_maps = sinks.shares_key_maps;
      // The only linear pairs of a head are the last token's.
      if (sinks.T < 100) shape.H = 8;
      expect_programs(shape, programs_of(shape));
    }
  }
}

void CudaBackend::expect_unread_window_factors(ProgramsOf programs_of) const {
  const AttentionCase shape = small(WindowLayout::kNone, 80);
  AttentionInputs inputs = make_bfloat16_inputs(shape);
  const auto outcome = [&] {
    return differentiate(programs_of(shape).ours, inputs.as(at::kBFloat16, at::kFloat, GetParam()));
  };
  const Outcome without = outcome();
  inputs.parameters.window_factors = at::zeros({shape.H});
  const Outcome with = outcome();
  EXPECT_TRUE(at::equal(with.value, without.value));
  for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
    const at::Tensor &found = with.gradients[i], &expected = without.gradients[i];
    ASSERT_EQ(found.defined(), expected.defined()) << "d" << kLeafNames[i];
    EXPECT_TRUE(!found.defined() || at::equal(found, expected)) << "d" << kLeafNames[i];
  }
}

}  // namespace hedgerow::kernels::testing
