// A decode step in a CUDA graph: captured once, replayed at every position. Needs a card; where the
// build has no CUDA, or the machine no card, it skips and says so.
#include "tests/kernels/cuda/cuda_decode.hpp"

#if defined(HEDGEROW_CUDA_KERNELS)
#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace hedgerow::kernels::testing {
namespace {

#if defined(HEDGEROW_CUDA_KERNELS)
DecodeState copy_of(const DecodeState& state) {
  const auto cloned = [](const at::Tensor& x) { return x.defined() ? x.clone() : x; };
  return {state.kv_state.clone(),
          state.k_state.clone(),
          state.window_k.clone(),
          state.window_v.clone(),
          state.positions.clone(),
          cloned(state.sink_k),
          cloned(state.sink_v),
          cloned(state.recall_k),
          cloned(state.recall_v),
          cloned(state.recall_positions)};
}

// Rows of different lengths, so that each replay meets other evictions and flushes than the
// capture.
void expect_replay(const AttentionCase& shape) {
  const c10::NoGradGuard no_grad;
  const AttentionInputs x = make_inputs(shape).as(shape.dtype, at::kFloat, at::kCUDA);
  const auto token = [&](const at::Tensor& value, std::int64_t t) { return value.select(2, t); };
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
  DecodeState state =
      prefill_state(x.k, x.v, at::tensor({5L, 24L, 31L}), x.parameters, shape.options);
  DecodeState eager = copy_of(state), warm = copy_of(state);
  const at::Tensor q = token(x.q, 0).clone(), k = token(x.k, 0).clone(), v = token(x.v, 0).clone();
  decode_step(q, k, v, warm, x.parameters, shape.options);  // loads the kernels, which no graph may
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const at::Tensor y = decode_step(q, k, v, state, x.parameters, shape.options);
  graph.capture_end();
  for (std::int64_t t = 0; t < 30; ++t) {
    q.copy_(token(x.q, t));
    k.copy_(token(x.k, t));
    v.copy_(token(x.v, t));
    graph.replay();
    const at::Tensor expected = decode_step(q, k, v, eager, x.parameters, shape.options);
    EXPECT_TRUE(at::equal(y, expected)) << shape.name() << ", replay " << t;
    EXPECT_TRUE(at::equal(state.positions, eager.positions)) << shape.name() << ", replay " << t;
    EXPECT_TRUE(at::equal(state.kv_state, eager.kv_state)) << shape.name() << ", replay " << t;
  }
}
#endif

TEST(CudaGraph, ReplaysADecodeStepAtEveryPosition) {
#if defined(HEDGEROW_CUDA_KERNELS)
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "no CUDA device";
  }
  for (const WindowLayout layout : kWindowLayouts) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {  // fused; in ATen operations
      AttentionCase shape{.B = 3, .H = 4, .G = 2, .T = 40, .D = 64, .f = 32, .dtype = dtype};
      shape.options.window = layout;
      shape.options.window_size = 8;
      expect_replay(shape);
      // As a recipe has it: sinks, and a key map a kv head.
      shape.options.num_sinks = layout == WindowLayout::kNone ? 0 : 4;
      shape.shares_key_maps = true;
      expect_replay(shape);
      if (layout != WindowLayout::kNone && dtype == at::kBFloat16) {
        shape.options.recall_cache = 3;
        expect_replay(shape);
      }
    }
  }
#else
  GTEST_SKIP() << "built without CUDA";
#endif
}

}  // namespace
}  // namespace hedgerow::kernels::testing
