// What the kernels of the hybrid's backward are given; conventions: hybrid_arguments.hpp.
#pragma once

#include "kernels/cuda/tile/hybrid_arguments.hpp"

namespace hedgerow::kernels::cuda {

// The kernel that computes for every query dn = dy / Z and beta = -dn.y, so that da_ij = dn_i.v_j +
// beta_i, and t_i, the sum of p_ij da_ij over the window.
struct PrepareArguments {
  int B = 0, H = 0, T = 0, D = 0;
  const void* dy = nullptr;  // [B, H, T, D] by the strides, bf16 or fp32; elements of D adjacent
  bool dy_is_float = false;
  std::int64_t dy_batch = 0, dy_head = 0, dy_token = 0;
  const void* y = nullptr;
  bool y_is_float = false;
  std::int64_t y_batch = 0, y_head = 0, y_token = 0;
  const std::uint16_t* rest = nullptr;  // [B, H, T, D]; null: y is not rounded
  const float* denominator = nullptr;   // [B, H, T]
  const std::uint16_t* pull = nullptr;  // [B, H, T, D]; null: no window
  std::uint16_t* dn = nullptr;          // [B, H, T, D]
  float* beta = nullptr;                // [B, H, T]
  float* totals = nullptr;              // [B, H, T] t_i; null with pull
};

// The gradients' two kernels. Partial results are folded by the caller in a fixed order.
struct BackwardArguments {
  HybridInputs inputs;
  States far;           // of keys: prefix sums
  States far_gradient;  // of queries: suffix sums, over the query heads of a key head: [B, U, ...]
  const std::uint16_t* features_q = nullptr;  // [B, H, 64 tiles, F], where there are near pairs
  const std::uint16_t* features_k = nullptr;  // [B, U, 64 tiles, F]
  Rows dn;                                    // [B, H, T, D]
  const float* beta = nullptr;                // [B, H, T]
  const float* maxima = nullptr;              // [B, H, T], of the forward; for dq, dk and dv
  const float* ties = nullptr;                // [B, H, T]
  const float* totals = nullptr;              // [B, H, T] t_i
  int tiles_per_part = 1;       // without dq, dk, dv: tiles that share a partial gradient
  float* layer_q = nullptr;     // [parts, B, H, D, f]; null: not wanted
  float* bias_q = nullptr;      // [parts, B, H, f]
  float* layer_k = nullptr;     // [parts, B, U, D, f]
  float* bias_k = nullptr;      // [parts, B, U, f]
  std::uint16_t* dq = nullptr;  // [B, H, T, D]
  std::uint16_t* dk = nullptr;  // [B, G, T, D]
  std::uint16_t* dv = nullptr;  // [B, G, T, D]
  // The gradients of sinks whose tile is far: what each tile of queries adds to their dk and dv,
  // from the tile first_far_query_tile(0) on, [those tiles, B, H, sinks, D]; and the sums over
  // tiles and the query heads of a kv head, [B, G, sinks, D], which the keys' kernel adds. Null:
  // no such sinks.
  float *sink_k = nullptr, *sink_v = nullptr;
  const float *sink_k_sum = nullptr, *sink_v_sum = nullptr;
};

}  // namespace hedgerow::kernels::cuda
