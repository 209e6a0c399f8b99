// Times of the kernels beside the T x T forms that a plain program would use, and the hybrid beside
// the chunked form in batched products that a good one would, as JSON lines:
//   {"name", "T", "dtype", "layout", "threads", "median_ms", "opponent", "opponent_ms", "ratio",
//   "repeats"}
// Ours and the opponent take turns (worker/bench/alternate.hpp). Shape: SmolLM2's (H 9, G 3, D 64,
// F 64, W 64), four sequences or what --tokens leaves of them. Against softmax's own fast forms,
// over many sizes: `hedgerow bench kernels`.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/forms.hpp"
#include "worker/bench/alternate.hpp"
#include "worker/bench/attention_problem.hpp"

namespace {

using namespace hedgerow;
using namespace hedgerow::kernels;
using worker::bench::AttentionSize;
using worker::bench::Contender;

constexpr std::int64_t kHeads = 9, kKvHeads = 3, kHeadDim = 64;

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
  std::vector<at::Tensor> trained;
};

Problem make_problem(std::int64_t T, storage::WindowLayout layout, const Options& options) {
  const AttentionSize size{.B = std::max<std::int64_t>(1, options.tokens / T),
                           .H = kHeads,
                           .G = kKvHeads,
                           .T = T,
                           .D = kHeadDim};
  storage::AttentionSpec spec;
  spec.bias = false;
  spec.window = layout;
  auto inputs = worker::bench::draw_inputs(size, wire::BenchDirection::kTraining, at::kCPU);
  auto hybrid = worker::bench::draw_hybrid(spec, kHeads, kHeadDim, at::kCPU);
  const at::Tensor dy = inputs.dy;  // of the transfer's loss: fp32, as y is here
  if (options.bfloat16) inputs = inputs.to(at::kBFloat16);
  hybrid.options.fp32_output = true;
  return {inputs.q, inputs.k, inputs.v, dy, hybrid.parameters, hybrid.options, hybrid.trained()};
}

using Work = std::function<void()>;

void report(const std::string& name,
            std::int64_t T,
            const std::string& layout,
            const Options& options,
            const Work& ours,
            const std::string& opponent,
            const Work& theirs) {
  const std::vector<Contender> both = {{ours}, {theirs}};
  const auto timings = worker::bench::alternate(both, options.repeats, at::kCPU);
  const double mine = timings[0].median_ms, other = timings[1].median_ms;
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
  torch::autograd::grad({attention()}, x.trained, {x.dy});
}

void bench_hybrid(std::int64_t T, storage::WindowLayout layout, const Options& options) {
  const std::string layout_name(to_string(layout));
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
    torch::autograd::grad({transfer_cross_entropy(x.q, x.k, x.parameters, x.options)}, x.trained);
  };
  const auto plain_entropy = [&] {
    torch::autograd::grad({transfer_cross_entropy_reference(x.q, x.k, x.parameters, x.options)},
                          x.trained);
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
  const Problem x = make_problem(T, storage::WindowLayout::kTerraced, options);
  report(
      "softmax_forward",
      T,
      "none",
      options,
      [&] { softmax_attention(x.q, x.k, x.v); },
      "ATen flash attention for the CPU",
      [&] { at::_scaled_dot_product_flash_attention_for_cpu(x.q, x.k, x.v, 0.0, true); });
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
    for (const auto layout : {storage::WindowLayout::kTerraced, storage::WindowLayout::kSliding}) {
      bench_hybrid(T, layout, options);
    }
  }
  return 0;
}
