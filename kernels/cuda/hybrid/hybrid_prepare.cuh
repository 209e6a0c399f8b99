// dn = dy / Z, rounded to bf16, beta = -dn.y and t = dn.pull: what both sides of the backward read
// of dy. With pull_i = sum_window p_ij (v_j - y_i), which the forward has without a pair in hand,
// dn_i.pull_i = sum_window p_ij da_ij: no scores, and nothing large cancels.
// A warp a row; grid (T / 4, B H), 128 threads; reads dy and y once: bound by memory.
#pragma once

#include "kernels/cuda/hybrid/hybrid_backward_arguments.hpp"
#include "kernels/cuda/tile/tiles.cuh"

namespace hedgerow::kernels::cuda {

HEDGEROW_TILE float element(const void* data, bool is_float, std::int64_t index) {
  return is_float ? static_cast<const float*>(data)[index]
                  : unpack(static_cast<const Bf16*>(data)[index]);
}

HEDGEROW_TILE float output(const PrepareArguments& a, std::int64_t at, std::int64_t at_rest) {
  return element(a.y, a.y_is_float, at) + (a.rest != nullptr ? unpack(a.rest[at_rest]) : 0.0F);
}

HEDGEROW_TILE void prepare_row(const PrepareArguments& a, int group, int row) {
  const int token = group * 4 + warp();
  if (token >= a.T) {
    return;
  }
  const int batch = row / a.H, head = row % a.H;
  const std::int64_t dy = batch * a.dy_batch + head * a.dy_head + token * a.dy_token;
  const std::int64_t y = batch * a.y_batch + head * a.y_head + token * a.y_token;
  const std::int64_t index = static_cast<std::int64_t>(row) * a.T + token;
  const float inverse = 1.0F / a.denominator[index];
  float dot = 0.0F, total = 0.0F;
  for (int d = 2 * lane(); d < a.D; d += 64) {
    const float first = element(a.dy, a.dy_is_float, dy + d),
                second = element(a.dy, a.dy_is_float, dy + d + 1);
    const Word pair = pack(first * inverse, second * inverse);
    *reinterpret_cast<Word*>(a.dn + index * a.D + d) = pair;
    // The product of the rounded dn and the unrounded y keeps sum_j a_ij da_ij at 0.
    dot += unpack(static_cast<Bf16>(pair)) * output(a, y + d, index * a.D + d) +
           unpack(static_cast<Bf16>(pair >> 16)) * output(a, y + d + 1, index * a.D + d + 1);
    if (a.pull != nullptr) {
      total += inverse * (first * unpack(a.pull[index * a.D + d]) +
                          second * unpack(a.pull[index * a.D + d + 1]));
    }
  }
  dot = sum_of_lanes(dot, 32);
  total = sum_of_lanes(total, 32);
  if (lane() == 0) {
    a.beta[index] = -dot;
    if (a.pull != nullptr) {
      a.totals[index] = total;
    }
  }
}

}  // namespace hedgerow::kernels::cuda
