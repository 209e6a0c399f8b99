// Times of the kernels beside the T x T backends that a plain program would use, and the hybrid
// beside the chunked backend in batched products that a good one would, as JSON lines:
//   {"name", "T", "dtype", "layout", "gradients", "threads", "median_ms", "opponent",
//   "opponent_ms", "ratio", "repeats", "peak_mib"}
// Ours and the opponent take turns (worker/bench/alternate.hpp); without an opponent its fields are
// null. peak_mib: what our own call takes beyond its inputs, at its highest. Shape: SmolLM2's (H 9,
// G 3, D 64, F 64, W 64), four sequences or what --tokens leaves of them. From kLongLength on the
// T x T opponent takes one head at a time, or its maps would not fit. The entry "forms" sets our
// own forms beside one another: 4 sinks beside none, a key map a kv head beside one a query head,
// of a transfer's forward and backward, of one with all gradients and of decode steps; and their
// states' bytes. Against softmax's own fast backends, over many sizes: `tests/bench/kernels`.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/machine/memory.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"
#include "tests/bench/attention_problem.hpp"
#include "worker/bench/alternate.hpp"
#include "worker/device/large_blocks.hpp"

namespace {

using namespace hedgerow;
using namespace hedgerow::kernels;
using tests::AttentionInputs;
using tests::AttentionSize;

constexpr std::int64_t kHeads = 9, kKvHeads = 3, kHeadDim = 64;
constexpr std::int64_t kLongLength = 4096;

struct Options {
  std::vector<std::int64_t> lengths = {512, 1024, 2048};
  std::vector<std::string> entries = {"softmax_forward",
                                      "hybrid_forward",
                                      "hybrid_forward_backward",
                                      "cross_entropy_forward_backward"};
  std::vector<std::string> opponents = {"quadratic", "chunked"};
  std::vector<std::string> layouts = {"terraced", "sliding"};
  std::string gradients = "maps";
  std::int64_t tokens = 2048;  // sequences = tokens / T, at least 1
  int repeats = 9;
  at::ScalarType dtype = at::kBFloat16;

  // Options of the maps alone, for what has no other gradients or none at all.
  [[nodiscard]] Options of_maps() const {
    Options options = *this;
    options.gradients = "maps";
    return options;
  }
};

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Sinks, and whose key maps: as LoLCATs has them, for which the goals against opponents are.
struct Form {
  int num_sinks = 0;
  storage::KeyMaps key_maps = storage::KeyMaps::kQueryHead;
};

storage::AttentionSpec spec_of(const std::string& layout, const Form& form) {
  storage::AttentionSpec spec;
  spec.bias = false;
  spec.num_sinks = form.num_sinks;
  spec.key_maps = form.key_maps;
  spec.window = storage::window_layout_from_string(layout);
  return spec;
}

struct Problem {
  at::Tensor q, k, v, dy;
  HybridParameters parameters;
  HybridOptions options;
  std::vector<at::Tensor> wanted;  // leaves that get gradients
};

Problem make_problem(std::int64_t T,
                     const std::string& layout,
                     const Options& options,
                     const Form& form = {}) {
  const AttentionSize size{.B = std::max<std::int64_t>(1, options.tokens / T),
                           .H = kHeads,
                           .G = kKvHeads,
                           .T = T,
                           .D = kHeadDim};
  const storage::AttentionSpec spec = spec_of(layout, form);
  const AttentionInputs drawn = tests::draw_inputs(size), inputs = drawn.in(options.dtype);
  tests::HybridCase hybrid = tests::draw_hybrid(spec, size);
  // The transfer's output and its gradient are fp32; a student inside a model works in one dtype.
  const bool is_transfer = options.gradients == "maps";
  hybrid.options.fp32_output = is_transfer;
  Problem x{inputs.q,
            inputs.k,
            inputs.v,
            is_transfer ? drawn.dy : inputs.dy,
            hybrid.parameters,
            hybrid.options,
            hybrid.trained()};
  if (!is_transfer) {
    for (at::Tensor* leaf : {&x.q, &x.k, &x.v}) x.wanted.push_back(leaf->set_requires_grad(true));
  }
  return x;
}

using Work = std::function<void()>;
using Attention = std::function<at::Tensor(const Problem&)>;

struct Opponent {
  std::string name;
  Work work;
};

double peak_mib(const Work& work) {
  worker::release_kept_blocks();
  machine::reset_resident_peak();
  const auto before = machine::resident_memory().now;
  work();
  return static_cast<double>(machine::resident_memory().peak - before) / (1 << 20);
}

// No opponent: what ours takes, alone.
void report(const std::string& name,
            std::int64_t T,
            const std::string& layout,
            const Options& options,
            const Work& ours,
            const std::vector<Opponent>& opponents) {
  nlohmann::json line = {{"name", name},
                         {"T", T},
                         {"dtype", options.dtype == at::kFloat ? "fp32" : "bf16"},
                         {"layout", layout},
                         {"gradients", options.gradients},
                         {"threads", at::get_num_threads()},
                         {"repeats", options.repeats},
                         {"peak_mib", peak_mib(ours)},
                         {"opponent", nullptr},
                         {"opponent_ms", nullptr},
                         {"ratio", nullptr}};
  if (opponents.empty()) {
    const std::vector<Work> alone = {ours};
    line["median_ms"] = worker::bench::alternate(alone, options.repeats, at::kCPU)[0];
    std::cout << line << std::endl;
  }
  for (const Opponent& opponent : opponents) {
    const std::vector<Work> both = {ours, opponent.work};
    const auto medians = worker::bench::alternate(both, options.repeats, at::kCPU);
    line["median_ms"] = medians[0];
    line["opponent"] = opponent.name;
    line["opponent_ms"] = medians[1];
    line["ratio"] = medians[0] / medians[1];
    std::cout << line << std::endl;
  }
}

Work forward(const Problem& x, const Attention& attention) {
  return [&x, attention] {
    const c10::NoGradGuard no_grad;
    attention(x);
  };
}

Work forward_backward(const Problem& x, const Attention& attention) {
  return [&x, attention] { torch::autograd::grad({attention(x)}, x.wanted, {x.dy}); };
}

FeatureMapWeights head_of(const FeatureMapWeights& map, std::int64_t head) {
  const auto one = [head](const at::Tensor& x) { return x.defined() ? x.narrow(0, head, 1) : x; };
  return {one(map.layer), one(map.bias)};
}

// A view of one head; its gradients reach the leaves of the whole problem.
Problem head_of(const Problem& x, std::int64_t head) {
  Problem one = x;
  const std::int64_t kv_head = head / (kHeads / kKvHeads);
  one.q = x.q.narrow(1, head, 1);
  one.k = x.k.narrow(1, kv_head, 1);
  one.v = x.v.narrow(1, kv_head, 1);
  one.dy = x.dy.narrow(1, head, 1);
  one.parameters.q = head_of(x.parameters.q, head);
  one.parameters.k = head_of(x.parameters.k, head);
  one.parameters.window_factors = x.parameters.window_factors.narrow(0, head, 1);
  return one;
}

Work head_by_head(const Problem& x, const Attention& attention, bool backward) {
  return [&x, attention, backward] {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const Problem one = head_of(x, head);
      (backward ? forward_backward(one, attention) : forward(one, attention))();
    }
  };
}

void bench_hybrid(std::int64_t T, const std::string& layout, const Options& options) {
  const Problem x = make_problem(T, layout, options);
  const Attention fused = [](const Problem& p) {
    return hybrid_attention(p.q, p.k, p.v, p.parameters, p.options);
  };
  const Attention quadratic = [](const Problem& p) {
    return hybrid_attention_reference(p.q, p.k, p.v, p.parameters, p.options);
  };
  const Attention chunked = [](const Problem& p) {
    return hybrid_attention(p.q, p.k, p.v, p.parameters, p.options, Backend::kAten);
  };
  const bool by_head = T >= kLongLength;
  for (const bool backward : {false, true}) {
    const std::string name = backward ? "hybrid_forward_backward" : "hybrid_forward";
    if (!has(options.entries, name)) continue;
    const auto work = [&](const Attention& attention) {
      return backward ? forward_backward(x, attention) : forward(x, attention);
    };
    std::vector<Opponent> opponents;
    if (has(options.opponents, "quadratic")) {
      opponents.push_back({by_head ? "T x T maps in fp32, a head at a time" : "T x T maps in fp32",
                           by_head ? head_by_head(x, quadratic, backward) : work(quadratic)});
    }
    if (has(options.opponents, "chunked"))
      opponents.push_back({"chunked in batched products", work(chunked)});
    report(name, T, layout, options, work(fused), opponents);
  }
}

// Decode steps behind T tokens of one sequence.
constexpr int kSteps = 64;

struct Decoder {
  Work steps;
  double state_bytes;  // kv_state and k_state
};

Decoder decoder(std::int64_t T,
                const std::string& layout,
                const Options& options,
                const Form& form) {
  const AttentionSize size{.B = 1, .H = kHeads, .G = kKvHeads, .T = T, .D = kHeadDim};
  const storage::AttentionSpec spec = spec_of(layout, form);
  const Work step = tests::decode_call(tests::draw_inputs(size).in(options.dtype),
                                       tests::draw_hybrid(spec, size));
  const std::int64_t states = form.key_maps == storage::KeyMaps::kKvHead ? kKvHeads : kHeads;
  return {[step] {
            for (int i = 0; i < kSteps; ++i) step();
          },
          static_cast<double>(states * spec.feature_dim * (kHeadDim + 1) * 4)};
}

void bench_forms(std::int64_t T, const std::string& layout, const Options& options) {
  constexpr Form kPlain{}, kSinks{4, storage::KeyMaps::kQueryHead},
      kKvHead{0, storage::KeyMaps::kKvHead};
  const Attention fused = [](const Problem& p) {
    return hybrid_attention(p.q, p.k, p.v, p.parameters, p.options);
  };
  for (const auto& [form, name] :
       {std::pair{kSinks, "4 sinks"}, {kKvHead, "a key map a kv head"}}) {
    const std::string opponent = form.num_sinks > 0 ? "without sinks" : "a key map a query head";
    for (const std::string gradients : {"maps", "all"}) {
      Options of_gradients = options;
      of_gradients.gradients = gradients;
      const Problem x = make_problem(T, layout, of_gradients, form),
                    plain = make_problem(T, layout, of_gradients, kPlain);
      report(name,
             T,
             layout,
             of_gradients,
             forward_backward(x, fused),
             {{opponent, forward_backward(plain, fused)}});
    }
    Options of_decode = options;
    of_decode.gradients = "decode";
    const Decoder ours = decoder(T, layout, options, form),
                  theirs = decoder(T, layout, options, kPlain);
    report(name, T, layout, of_decode, ours.steps, {{opponent, theirs.steps}});
    std::cout << nlohmann::json{{"name", name},
                                {"T", T},
                                {"layout", layout},
                                {"gradients", "state"},
                                {"bytes", ours.state_bytes},
                                {"opponent", opponent},
                                {"opponent_bytes", theirs.state_bytes}}
              << std::endl;
  }
}

void bench_cross_entropy(std::int64_t T, const std::string& layout, const Options& options) {
  const Options maps = options.of_maps();
  const Problem x = make_problem(T, layout, maps);
  const Work quadratic = [&x] {
    torch::autograd::grad({transfer_cross_entropy_reference(x.q, x.k, x.parameters, x.options)},
                          x.wanted);
  };
  const Work tiled = [&x] {
    torch::autograd::grad({transfer_cross_entropy(x.q, x.k, x.parameters, x.options)}, x.wanted);
  };
  std::vector<Opponent> opponents;
  if (has(options.opponents, "quadratic"))
    opponents.push_back({"T x T weights, autograd", quadratic});
  report("cross_entropy_forward_backward", T, layout, maps, tiled, opponents);
}

void bench_softmax(std::int64_t T, const Options& options) {
  const Options maps = options.of_maps();
  const Problem x = make_problem(T, "terraced", maps);
  report("softmax_forward",
         T,
         "none",
         maps,
         [&] { softmax_attention(x.q, x.k, x.v); },
         {{"ATen flash attention for the CPU",
           [&] { at::_scaled_dot_product_flash_attention_for_cpu(x.q, x.k, x.v, 0.0, true); }}});
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times of the attention kernels against their T x T backends, as JSON lines");
  app.add_option("--lengths", options.lengths, "sequence lengths T")->capture_default_str();
  app.add_option("--entries", options.entries, "which of them")
      ->check(CLI::IsMember({"softmax_forward",
                             "hybrid_forward",
                             "hybrid_forward_backward",
                             "cross_entropy_forward_backward",
                             "forms"}))
      ->capture_default_str();
  app.add_option("--opponents", options.opponents, "of the hybrid; none: ours alone")
      ->check(CLI::IsMember({"quadratic", "chunked", "none"}))
      ->capture_default_str();
  app.add_option("--layouts", options.layouts)
      ->check(CLI::IsMember(options.layouts))
      ->capture_default_str();
  app.add_option("--gradients",
                 options.gradients,
                 "of the backward: the maps, as transfer trains, or those of q, k and v too")
      ->check(CLI::IsMember({"maps", "all"}))
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "tokens a batch: T x sequences")
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "alternating repeats")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag_callback(
      "--float32", [&options] { options.dtype = at::kFloat; }, "fp32 inputs instead of bf16");
  CLI11_PARSE(app, argc, argv);
  worker::keep_large_blocks();  // as the worker does
  for (const std::int64_t T : options.lengths) {
    if (has(options.entries, "softmax_forward")) bench_softmax(T, options);
    for (const std::string& layout : options.layouts) {
      bench_hybrid(T, layout, options);
      if (has(options.entries, "forms")) bench_forms(T, layout, options);
      if (has(options.entries, "cross_entropy_forward_backward"))
        bench_cross_entropy(T, layout, options);
    }
  }
  return 0;
}
