// What the kernels of the weights' cross-entropy (transfer_loss.hpp) are given; conventions:
// hybrid_arguments.hpp. With a the teacher's weight of a pair, w = p or l the student's and Z its
// denominator, c = a where w >= clamp Z, else 0, and C = sum_j c over a query's keys:
//
//   L_i = -sum_j a log max(w / Z, clamp)     dL/dl = C / Z - c / l, of linear pairs
//
// t_i, the sum of p dL/dp over the window, is -sum l dL/dl: w / Z does not change when all of a
// query's weights are scaled.
#pragma once

#include "kernels/cuda/tile/hybrid_arguments.hpp"

namespace hedgerow::kernels::cuda {

// What the gradients read of every query, [B, H, T] each.
struct CrossEntropyRows {
  float* normaliser = nullptr;  // of the teacher: log2 sum_j e^s
  float* share = nullptr;       // C / Z
  float* floor = nullptr;       // clamp Z
  float* totals = nullptr;      // t_i; null with kNone
};

struct CrossEntropyArguments : TileArguments {
  float clamp = 0.0F;
  float* losses = nullptr;              // [B, H, tiles, 4] sum of L_i, a warp's rows each
  bool gradients = false;               // else nothing below is read or written
  std::uint16_t* features_q = nullptr;  // [B, H, 64 tiles, F]
  CrossEntropyRows rows;
};

// Partial results are folded by the caller in a fixed order.
struct CrossEntropyBackwardArguments {
  HybridInputs inputs;
  const std::uint16_t* features_q = nullptr;  // [B, H, 64 tiles, F]
  const std::uint16_t* features_k = nullptr;  // [B, U, 64 tiles, F]
  CrossEntropyRows rows;
  int tiles_per_part = 1;
  float* layer = nullptr;  // of the side: [parts, B, H or U, D, f]; null: not wanted
  float* bias = nullptr;   // [parts, B, H or U, f]
};

}  // namespace hedgerow::kernels::cuda
