#include "kernels/cuda/hybrid_problem_cuda.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/cuda/stream.hpp"

namespace hedgerow::kernels::cuda {
namespace {

// 16-byte loads: the start and every row must be aligned.
bool has_aligned_rows(const at::Tensor& x) {
  constexpr std::int64_t kElements = 8;
  return reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0 && x.stride(3) == 1 &&
         x.stride(0) % kElements == 0 && x.stride(1) % kElements == 0 &&
         x.stride(2) % kElements == 0;
}

Map map_of(const HybridProblem& problem,
           const FeatureMapWeights& weights,
           std::vector<at::Tensor>& kept) {
  Map map;
  map.function = map_function(problem.options);
  if (weights.layer.defined()) {
    kept.push_back(weights.layer.to(at::kBFloat16));
    map.layer = bf16(kept.back());
  }
  if (weights.bias.defined()) {
    map.bias = weights.bias.const_data_ptr<float>();
  }
  return map;
}

// As many walks beside one another as fill the card, but none shorter than four tiles.
int segments_for(const Prepared& p, int heads) {
  constexpr int kTilesOfSegment = 4, kWavesOfCard = 2;
  const int rows = p.inputs.B * heads * (p.shape.head_dim / 64);
  const int wanted = (kWavesOfCard * device_limits().multiprocessors + rows - 1) / rows;
  const int possible = (p.inputs.tiles() + kTilesOfSegment - 1) / kTilesOfSegment;
  return std::clamp(wanted, 1, std::max(possible, 1));
}

Walked walk(const Prepared& p, StatesArguments arguments, const at::TensorOptions& options) {
  const std::int64_t B = p.inputs.B, H = arguments.heads, F = p.shape.features(),
                     D = p.shape.head_dim;
  Walked out;
  out.states = at::empty({B, H, p.tiles, F, D}, options.dtype(at::kBFloat16));
  out.sums = at::empty({B, H, p.tiles, F}, options.dtype(at::kFloat));
  if (p.has_near) {
    out.features = at::empty({B, H, p.tiles * kTile, F}, options.dtype(at::kBFloat16));
  }
  arguments.inputs = p.inputs;
  arguments.out = out.pointers();
  arguments.features = out.features.defined() ? bf16_out(out.features) : nullptr;
  arguments.segments = segments_for(p, arguments.heads);
  at::Tensor totals;
  if (arguments.segments > 1) {
    totals = at::empty({B, H, arguments.segments, F, D + 1}, options.dtype(at::kFloat));
    arguments.totals = totals.data_ptr<float>();
  }
  launch_states(p.shape, arguments, p.stream);
  return out;
}

}  // namespace

MapFunction map_function(const FeatureMapOptions& options) {
  return {options.row().activation, static_cast<float>(options.temperature)};
}

std::int64_t columns_of(const FeatureMapWeights& map, std::int64_t head_dim) {
  return map.layer.defined() ? map.layer.size(2) : head_dim;
}

KernelShape kernel_shape(const at::Tensor& q,
                         const HybridParameters& parameters,
                         const HybridOptions& options) {
  const std::int64_t columns = columns_of(parameters.q, q.size(3));
  return {static_cast<int>(q.size(3)),
          static_cast<int>(columns),
          feature_dim(parameters.q, options, q.size(3)) == 2 * columns};
}

std::string why_not_rows(const at::Tensor& q) {
  const std::int64_t rows = q.size(0) * q.size(1);
  return rows <= kMostRows ? ""
                           : c10::str("the fused CUDA kernels take ",
                                      kMostRows,
                                      " heads of a batch at once, not ",
                                      rows,
                                      " (B H)");
}

std::string why_not_shared(const char* what, std::size_t need) {
  const std::size_t have = device_limits().shared_bytes;
  return need <= have ? ""
                      : c10::str("a threadblock of ",
                                 what,
                                 " needs ",
                                 need,
                                 " bytes of shared memory, the device has ",
                                 have);
}

WindowArguments window_arguments(const HybridOptions& options,
                                 std::int64_t window,
                                 std::int64_t sinks) {
  return {.layout = options.window,
          .window = static_cast<int>(window),
          .sinks = static_cast<int>(sinks),
          .linear_cap = static_cast<int>(options.linear_cap)};
}

Rows rows_of(const at::Tensor& x, std::vector<at::Tensor>& kept) {
  if (!x.defined()) {
    return {};
  }
  kept.push_back(has_aligned_rows(x) ? x : x.clone(at::MemoryFormat::Contiguous));
  const at::Tensor& rows = kept.back();
  return {bf16(rows), rows.stride(0), rows.stride(1), rows.stride(2)};
}

Prepared prepare(const HybridProblem& problem) {
  Prepared p;
  HybridInputs& in = p.inputs;
  p.shape = {static_cast<int>(problem.shape.D),
             static_cast<int>(problem.projected),
             problem.F == 2 * problem.projected};
  in.B = static_cast<int>(problem.shape.B);
  in.H = static_cast<int>(problem.shape.H);
  in.G = static_cast<int>(problem.shape.G);
  in.U = static_cast<int>(problem.key_heads);
  in.T = static_cast<int>(problem.shape.T);
  // A window of the whole sequence and a longer one are the same, and fit an int.
  static_cast<WindowArguments&>(in) = window_arguments(
      problem.options, std::min(problem.options.window_size, problem.shape.T), problem.num_sinks());
  in.q = rows_of(problem.q, p.kept);
  in.k = rows_of(problem.k, p.kept);
  in.v = rows_of(problem.v, p.kept);
  in.map_q = map_of(problem, problem.map_q, p.kept);
  in.map_k = map_of(problem, problem.map_k, p.kept);
  in.gate = problem.windowed() ? problem.gate.const_data_ptr<float>() : nullptr;
  p.tiles = in.tiles();
  p.has_far = in.far_tiles(in.tiles() - 1) > 0;
  for (int tile = 0; tile < in.tiles(); ++tile) {
    p.has_near = p.has_near || std::min(in.near_linear_end(tile), tile + 1) > in.far_tiles(tile);
  }
  p.stream = current_stream(problem.q.device());
  return p;
}

Walked walk_keys(const Prepared& p, const at::TensorOptions& options) {
  if (!p.has_far && !p.has_near) {
    return {};
  }
  StatesArguments arguments;
  arguments.prefix = true;
  arguments.x = p.inputs.k;
  arguments.values = p.inputs.v.data != nullptr ? p.inputs.v : p.inputs.k;
  arguments.x_heads = p.inputs.G;
  arguments.heads = p.inputs.U;
  arguments.map = p.inputs.map_k;
  arguments.skipped = p.inputs.sinks;
  return walk(p, arguments, options);
}

Walked walk_queries(Prepared& p,
                    const at::Tensor& dn,
                    const at::Tensor& beta,
                    const at::TensorOptions& options) {
  if (!p.has_far && !p.has_near) {
    return {};
  }
  StatesArguments arguments;
  arguments.prefix = false;
  arguments.x = p.inputs.q;
  arguments.values = rows_of(dn, p.kept);
  arguments.x_heads = p.inputs.H;
  arguments.heads = p.inputs.H;
  arguments.map = p.inputs.map_q;
  arguments.weights = floats(beta);
  return walk(p, arguments, options);
}

}  // namespace hedgerow::kernels::cuda
