// Per key head, for each query head that shares its map, tiles of queries against all their keys,
// [keys, 64]: the teacher's weights t, the student's w = p or l, their cross-entropy, and from it
// da = dL/dw with the denominator's share (attention_tiles.hpp). Then, as in the hybrid's backward,
// dphi_q = sum_j da phi_k and dphi_k = sum_i da phi_q over linear pairs, and the window factor's
// gradient is -(1 - g) sum_i phi_q_i.dphi_q_i, since w / Z does not change when p and l are scaled
// together. T^2 (D + 3 F) FLOPs a query head; scratch of a thread: three [T, 64] strips and two
// [F, T] features.
#include "kernels/cpu/transfer_loss_cpu.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "kernels/cpu/hybrid_head_cpu.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels::cpu {
namespace {

constexpr std::int64_t kQueries = 64;

struct LossPartials {
  at::Tensor loss;              // [B, H] fp64
  at::Tensor layer_q, layer_k;  // [B, H or key heads, f, padded(D)]
  at::Tensor bias_q, bias_k;    // [B, H or key heads, f]
  at::Tensor window_factors;    // [B, H]
};

class LossHead {
 public:
  LossHead(const TiledProblem& problem, bool with_gradients, const LossPartials& out)
      : problem_(problem),
        out_(out),
        with_gradients_(with_gradients),
        ld_keys_(padded(problem.shape.T)),
        q_rows_(problem.q),
        k_rows_(problem.k),
        map_q_(problem, problem.map_q, kQueries),
        map_k_(problem, problem.map_k, problem.shape.T),
        q_transposed_(problem.shape.D * kQueries),
        phi_q_(problem.F * kQueries),
        dphi_q_(with_gradients ? problem.F * kQueries : 0),
        phi_k_(problem.F * ld_keys_),
        dphi_k_(with_gradients ? problem.F * ld_keys_ : 0),
        teacher_(problem.shape.T * kQueries),
        window_((problem.num_sinks() + problem.shape.T) * kQueries),
        student_(problem.shape.T * kQueries),
        da_transposed_(with_gradients ? kQueries * ld_keys_ : 0),
        lanes_(kNumLanes * kQueries) {}

  void run(std::int64_t b, std::int64_t key_head) {
    b_ = b;
    k_ = k_rows_.rows(b, key_head / problem_.key_heads_of_kv());
    map_k_.select_head(key_head);
    key_features(problem_, map_k_, k_, {0, problem_.shape.T}, phi_k_.data(), ld_keys_);
    dphi_k_.clear();
    for (std::int64_t r = 0; r < problem_.key_group(); ++r) {
      walk_query_head(key_head * problem_.key_group() + r);
    }
    if (with_gradients_) {
      clear_sinks(problem_, 0, dphi_k_.data(), ld_keys_);
      map_k_.backward(phi_k_.data(),
                      dphi_k_.data(),
                      ld_keys_,
                      k_,
                      0,
                      problem_.shape.T,
                      head_of(out_.layer_k, key_head),
                      head_of(out_.bias_k, key_head),
                      nullptr,
                      0);
    }
  }

 private:
  void walk_query_head(std::int64_t h) {
    h_ = h;
    q_ = q_rows_.rows(b_, h);
    map_q_.select_head(h);
    gate_ = problem_.windowed() ? problem_.gate.const_data_ptr<float>()[h] : 0.0F;
    double loss = 0, total = 0;
    for (std::int64_t begin = 0; begin < problem_.shape.T;) {
      // A tile must not cross a chunk's border: all its queries share keys_begin.
      const QueryTile tile = query_tile(problem_, begin);
      loss += walk_tile(tile);
      if (with_gradients_) {
        total += gradients(tile);
      }
      begin = tile.end;
    }
    out_.loss.data_ptr<double>()[b_ * problem_.shape.H + h] = loss;
    if (with_gradients_ && problem_.windowed()) {
      *head_of(out_.window_factors, h) =
          static_cast<float>((1.0 - static_cast<double>(gate_)) * total);
    }
  }

  // Rows of lanes_, a query a lane.
  enum Lane {
    kMaxima,
    kTeacherSums,
    kStudentSums,
    kLosses,
    kWindowSums,
    kTotals,
    kGates,
    kNumLanes
  };
  float* lanes(Lane row) { return lanes_.data() + row * kQueries; }

  float* head_of(const at::Tensor& x, std::int64_t head) {
    return x.defined() ? x.data_ptr<float>() + b_ * x.stride(0) + head * x.stride(1) : nullptr;
  }

  // The tile's loss; student_ becomes da [keys, queries].
  double walk_tile(const QueryTile& tile) {
    const std::int64_t n = tile.queries();
    const float scale = 1.0F / std::sqrt(static_cast<float>(problem_.shape.D));
    transpose(q_.row(tile.begin), q_.ld, n, problem_.shape.D, q_transposed_.data(), kQueries);
    map_q_.features(q_, tile.begin, n, q_transposed_.data(), phi_q_.data(), kQueries);
    teacher_weights(tile, scale);
    student_weights(tile, scale);
    const auto rows = static_cast<double>(problem_.shape.B * problem_.shape.H * problem_.shape.T);
    float* losses = lanes(kLosses);
    cross_entropy_tile(teacher_.data(),
                       lanes(kTeacherSums),
                       lanes(kStudentSums),
                       kQueries,
                       tile.end,
                       padded(n),
                       static_cast<float>(1.0 / rows),
                       student_.data(),
                       losses);
    double loss = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      loss += static_cast<double>(losses[i]);
    }
    return loss / rows;
  }

  // teacher_ = e^(s - m) over all keys up to the query; the raw scores of sinks and of the tile's
  // own keys stay in window_.
  void teacher_weights(const QueryTile& tile, float scale) {
    const std::int64_t n = tile.queries();
    multiply(problem_.products,
             {tile.end, n, problem_.shape.D},
             as_stored(k_.data, k_.ld),
             {q_transposed_.data(), kQueries},
             teacher_.data(),
             kQueries,
             false);
    std::copy(teacher_.data() + tile.keys_begin * kQueries,
              teacher_.data() + tile.end * kQueries,
              window_.data() + tile.num_sinks * kQueries);
    std::copy(teacher_.data(), teacher_.data() + tile.num_sinks * kQueries, window_.data());
    const TileMask causal{0, tile.begin, 0, kNoLag};
    std::fill(lanes(kGates), lanes(kGates) + kQueries, 1.0F);
    window_weights(teacher_.data(),
                   kQueries,
                   tile.end,
                   padded(n),
                   causal,
                   scale,
                   lanes(kGates),
                   teacher_.data(),
                   lanes(kMaxima),
                   lanes(kTeacherSums));
  }

  // student_ = p + l over the same keys, each pair in one branch.
  void student_weights(const QueryTile& tile, float scale) {
    const std::int64_t n = tile.queries(), linear = tile.linear_end;
    const float epsilon = problem_.windowed() ? 0.0F : static_cast<float>(kLinearEpsilon);
    float* sums = lanes(kStudentSums);
    std::fill(sums, sums + kQueries, epsilon);
    std::fill(student_.data() + linear * kQueries, student_.data() + tile.end * kQueries, 0.0F);
    multiply(problem_.products,
             {linear, n, problem_.F},
             transposed(phi_k_.data(), ld_keys_),
             {phi_q_.data(), kQueries},
             student_.data(),
             kQueries,
             false);
    mask_linear(student_.data(), kQueries, linear, padded(n), all_linear(tile), sums);
    if (problem_.windowed()) {
      query_gates(problem_, tile, gate_, lanes(kGates));
      window_weights(window_.data(),
                     kQueries,
                     tile.window_rows(),
                     padded(n),
                     tile.window_mask,
                     scale,
                     lanes(kGates),
                     window_.data(),
                     lanes(kMaxima),
                     lanes(kWindowSums));
      add_tile(student_.data(), window_.data(), kQueries, tile.num_sinks, padded(n));
      add_tile(student_.data() + tile.keys_begin * kQueries,
               window_.data() + tile.num_sinks * kQueries,
               kQueries,
               tile.keys(),
               padded(n));
      add_tile(sums, lanes(kWindowSums), kQueries, 1, padded(n));
    }
  }

  // The linear pairs of the tile among all keys from 0.
  static TileMask all_linear(const QueryTile& tile) {
    return {0, tile.begin, tile.linear_mask.min_lag, kNoLag};
  }

  // The maps' gradients from da; returns sum_i of the window's sum_j p da.
  double gradients(const QueryTile& tile) {
    const std::int64_t F = problem_.F, n = tile.queries(), linear = tile.linear_end;
    if (linear == 0) {
      return 0;
    }
    float* totals = lanes(kTotals);
    mask_linear(student_.data(), kQueries, linear, padded(n), all_linear(tile), lanes(kMaxima));
    multiply(problem_.products,
             {F, n, linear},
             as_stored(phi_k_.data(), ld_keys_),
             {student_.data(), kQueries},
             dphi_q_.data(),
             kQueries,
             false);
    transpose(student_.data(), kQueries, linear, n, da_transposed_.data(), ld_keys_);
    multiply(problem_.products,
             {F, linear, n},
             as_stored(phi_q_.data(), kQueries),
             {da_transposed_.data(), ld_keys_},
             dphi_k_.data(),
             ld_keys_,
             true);
    column_dots(phi_q_.data(), dphi_q_.data(), kQueries, F, padded(n), totals);
    map_q_.backward(phi_q_.data(),
                    dphi_q_.data(),
                    kQueries,
                    q_,
                    tile.begin,
                    n,
                    head_of(out_.layer_q, h_),
                    head_of(out_.bias_q, h_),
                    nullptr,
                    0);
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      total -= static_cast<double>(totals[i]);
    }
    return total;
  }

  const TiledProblem& problem_;
  const LossPartials& out_;
  bool with_gradients_;
  std::int64_t ld_keys_, b_ = 0, h_ = 0;
  HeadRows q_rows_, k_rows_;
  TileMap map_q_, map_k_;
  Rows q_, k_;
  float gate_ = 0;
  Scratch q_transposed_, phi_q_, dphi_q_, phi_k_, dphi_k_, teacher_, window_, student_,
      da_transposed_, lanes_;
};

}  // namespace

ParameterLoss cross_entropy_cpu(const TiledProblem& problem, bool with_gradients) {
  const auto [B, H, G, T, D] = problem.shape;
  const at::TensorOptions floats = problem.q.options().dtype(at::kFloat);
  const std::int64_t U = problem.key_heads;
  const auto make = [&](bool needed, at::IntArrayRef sizes) {
    return needed && with_gradients ? at::zeros(sizes, floats) : at::Tensor();
  };
  LossPartials partials;
  partials.loss = at::zeros({B, H}, floats.dtype(at::kDouble));
  partials.layer_q = make(problem.map_q.layer.defined(), {B, H, problem.projected, padded(D)});
  partials.layer_k = make(problem.map_k.layer.defined(), {B, U, problem.projected, padded(D)});
  partials.bias_q = make(problem.map_q.bias.defined(), {B, H, problem.projected});
  partials.bias_k = make(problem.map_k.bias.defined(), {B, U, problem.projected});
  partials.window_factors = make(problem.windowed(), {B, H});
  at::parallel_for(0, B * U, 1, [&](std::int64_t begin, std::int64_t end) {
    const ProductsScope scope(problem.products);
    LossHead head(problem, with_gradients, partials);
    for (std::int64_t task = begin; task < end; ++task) {
      head.run(task / problem.key_heads, task % problem.key_heads);
    }
  });
  ParameterLoss result;
  double loss = 0;
  for (std::int64_t i = 0; i < partials.loss.numel(); ++i) {
    loss += partials.loss.data_ptr<double>()[i];
  }
  result.loss = at::full({}, loss, floats);
  result.gradients.map_q = {fold_layer(partials.layer_q, problem.shape.D),
                            fold_batch(partials.bias_q)};
  result.gradients.map_k = {fold_layer(partials.layer_k, problem.shape.D),
                            fold_batch(partials.bias_k)};
  result.gradients.window_factors = fold_batch(partials.window_factors);
  return result;
}

}  // namespace hedgerow::kernels::cpu
