// Times of the kernels beside the T x T forms that a plain program would use, and the hybrid beside
// the chunked form in batched products that a good one would, as JSON lines:
//   {"name", "T", "dtype", "layout", "threads", "median_ms", "opponent", "opponent_ms", "ratio",
//   "repeats"}
// Ours and the opponent take turns; each is run once before and the medians are compared, so that a
// busy or throttled machine hurts both alike. Shape: SmolLM2's (H 9, G 3, D 64, F 64, W 64), four
// sequences or what --tokens leaves of them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/forms.hpp"

namespace {

using namespace hedgerow::kernels;

constexpr std::int64_t kHeads = 9, kKvHeads = 3, kHeadDim = 64, kColumns = 32;

struct Options {
  std::vector<std::int64_t> lengths = {512, 1024, 2048};
  std::int64_t tokens = 2048;  // sequences = tokens / T, at least 1
  int repeats = 9;
  bool bfloat16 = true;
};

struct Problem {
  at::Tensor q, k, v, dy;
  HybridParameters parameters;
  HybridOptions options;
  [[nodiscard]] std::vector<at::Tensor> trained() const {
    return {parameters.q.layer, parameters.k.layer, parameters.window_factors};
  }
};

Problem make_problem(std::int64_t T, WindowLayout layout, const Options& options) {
  at::manual_seed(1);
  const std::int64_t B = std::max<std::int64_t>(1, options.tokens / T);
  const at::ScalarType dtype = options.bfloat16 ? at::kBFloat16 : at::kFloat;
  Problem problem;
  problem.q = at::randn({B, kHeads, T, kHeadDim}).to(dtype);
  problem.k = at::randn({B, kKvHeads, T, kHeadDim}).to(dtype);
  problem.v = at::randn({B, kKvHeads, T, kHeadDim}).to(dtype);
  problem.dy = at::randn({B, kHeads, T, kHeadDim});
  problem.parameters.q.layer =
      (at::randn({kHeads, kHeadDim, kColumns}) / 8.0).set_requires_grad(true);
  problem.parameters.k.layer =
      (at::randn({kHeads, kHeadDim, kColumns}) / 8.0).set_requires_grad(true);
  problem.parameters.window_factors = at::full({kHeads}, -2.2).set_requires_grad(true);
  problem.options.layout = layout;
  problem.options.fp32_output = true;
  return problem;
}

using Work = std::function<void()>;

double milliseconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void report(const std::string& name,
            std::int64_t T,
            const std::string& layout,
            const Options& options,
            const Work& ours,
            const std::string& opponent,
            const Work& theirs) {
  ours();
  theirs();
  std::vector<double> our_times, their_times;
  for (int i = 0; i < options.repeats; ++i) {
    our_times.push_back(milliseconds(ours));
    their_times.push_back(milliseconds(theirs));
  }
  const double mine = median(our_times), other = median(their_times);
  std::printf(
      "{\"name\": \"%s\", \"T\": %ld, \"dtype\": \"%s\", \"layout\": \"%s\", \"threads\": %d, "
      "\"median_ms\": %.3f, "
      "\"opponent\": \"%s\", \"opponent_ms\": %.3f, \"ratio\": %.4f, \"repeats\": %d}\n",
      name.c_str(),
      static_cast<long>(T),
      options.bfloat16 ? "bfloat16" : "float32",
      layout.c_str(),
      at::get_num_threads(),
      mine,
      opponent.c_str(),
      other,
      mine / other,
      options.repeats);
  std::fflush(stdout);
}

void forward_and_backward(const Problem& x, const std::function<at::Tensor()>& attention) {
  torch::autograd::grad({attention()}, x.trained(), {x.dy});
}

void bench_hybrid(std::int64_t T,
                  WindowLayout layout,
                  const std::string& layout_name,
                  const Options& options) {
  const Problem x = make_problem(T, layout, options);
  const auto fused = [&] { return hybrid_attention(x.q, x.k, x.v, x.parameters, x.options); };
  const auto plain = [&] {
    return hybrid_attention_reference(x.q, x.k, x.v, x.parameters, x.options);
  };
  report(
      "hybrid_forward",
      T,
      layout_name,
      options,
      [&] {
        const c10::NoGradGuard no_grad;
        fused();
      },
      "T x T maps in fp32",
      [&] {
        const c10::NoGradGuard no_grad;
        plain();
      });
  report(
      "hybrid_forward_backward",
      T,
      layout_name,
      options,
      [&] { forward_and_backward(x, fused); },
      "T x T maps in fp32, autograd",
      [&] { forward_and_backward(x, plain); });
  const auto chunked = [&] {
    return aten::hybrid_attention(x.q, x.k, x.v, x.parameters, x.options);
  };
  report(
      "hybrid_forward_backward",
      T,
      layout_name,
      options,
      [&] { forward_and_backward(x, fused); },
      "chunked in batched products",
      [&] { forward_and_backward(x, chunked); });
  const auto entropy = [&] {
    torch::autograd::grad({transfer_cross_entropy(x.q, x.k, x.parameters, x.options)}, x.trained());
  };
  const auto plain_entropy = [&] {
    torch::autograd::grad({transfer_cross_entropy_reference(x.q, x.k, x.parameters, x.options)},
                          x.trained());
  };
  report("cross_entropy_forward_backward",
         T,
         layout_name,
         options,
         entropy,
         "T x T weights, autograd",
         plain_entropy);
}

void bench_softmax(std::int64_t T, const Options& options) {
  const Problem x = make_problem(T, WindowLayout::kTerraced, options);
  report(
      "softmax_forward",
      T,
      "none",
      options,
      [&] { softmax_attention(x.q, x.k, x.v); },
      "ATen flash attention for the CPU",
      [&] { at::_scaled_dot_product_flash_attention_for_cpu(x.q, x.k, x.v, 0.0, true); });
}

// One token after T tokens of context; softmax over a key cache of that length is what it replaces.
void bench_decode(std::int64_t T,
                  WindowLayout layout,
                  const std::string& layout_name,
                  const Options& options) {
  const c10::NoGradGuard no_grad;
  const Problem x = make_problem(T, layout, options);
  const at::Tensor lengths = at::full({x.q.size(0)}, T, at::kLong);
  DecodeState state = prefill_state(x.k, x.v, lengths, x.parameters, x.options);
  const at::Tensor q = x.q.select(2, T - 1), k = x.k.select(2, T - 1), v = x.v.select(2, T - 1);
  report(
      "decode_step",
      T,
      layout_name,
      options,
      [&] { decode_step(q, k, v, state, x.parameters, x.options); },
      "softmax over a cache of T keys",
      [&] {
        at::scaled_dot_product_attention(q.unsqueeze(2), x.k, x.v, {}, 0.0, false, {}, true);
      });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times of the attention kernels against their T x T forms, as JSON lines");
  app.add_option("--lengths", options.lengths, "sequence lengths T")->capture_default_str();
  app.add_option("--tokens", options.tokens, "tokens a batch: T x sequences")
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "alternating repeats")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--float32{false}", options.bfloat16, "fp32 inputs instead of bf16");
  CLI11_PARSE(app, argc, argv);
  for (const std::int64_t T : options.lengths) {
    bench_softmax(T, options);
    for (const auto& [layout, name] :
         {std::pair{WindowLayout::kTerraced, "terraced"}, {WindowLayout::kSliding, "sliding"}}) {
      bench_hybrid(T, layout, name, options);
      bench_decode(T, layout, name, options);
    }
  }
  return 0;
}
