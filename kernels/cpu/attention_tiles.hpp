// The element-wise parts of attention on one tile, x86 vectors (cpu_tiles.hpp has the products).
// Score tiles are [keys, queries], one query a lane, so that the maxima and sums of a softmax run
// down the rows and need no sum across a vector; feature tiles are [features, tokens] for the same
// reason.
#pragma once

#include <cstdint>

#include "kernels/problem/feature_map.hpp"

namespace hedgerow::kernels::cpu {

// Which (key row, query lane) pairs of a tile a branch covers: min_lag <= query - key < max_lag, in
// the first sink_rows rows without the upper end.
struct TileMask {
  std::int64_t first_key, first_query;
  std::int64_t min_lag, max_lag;
  std::int64_t sink_rows = 0;
};
inline constexpr std::int64_t kNoLag = std::int64_t{1} << 40;

// scores [keys, lanes] of raw q.k: scaled in place, -inf outside the mask. maxima[lane] and
// sums[lane] of p = gates[lane] exp(score - maximum), which goes to `weights` (may be scores
// itself).
void window_weights(float* scores,
                    std::int64_t ld,
                    std::int64_t keys,
                    std::int64_t lanes,
                    const TileMask& mask,
                    float scale,
                    const float* gates,
                    float* weights,
                    float* maxima,
                    float* sums);

// Zeroes x outside the mask and adds its column sums to sums.
void mask_linear(float* x,
                 std::int64_t ld,
                 std::int64_t keys,
                 std::int64_t lanes,
                 const TileMask& mask,
                 float* sums);

// x += y inside a [rows, lanes] tile.
void add_tile(float* x, const float* y, std::int64_t ld, std::int64_t rows, std::int64_t lanes);

// Gradient of the scores in the window: da [keys, lanes] becomes scale * (p da - [score = maximum]
// total / ties), where total[lane] = sum over the window of p da and ties counts the keys at the
// maximum, which share alike.
void window_gradient(const float* scores,
                     const float* weights,
                     std::int64_t ld,
                     std::int64_t keys,
                     std::int64_t lanes,
                     const float* maxima,
                     const float* totals,
                     float scale,
                     float* da);

// Cross-entropy of a teacher's weights t (unnormalised, sums teacher_sums) against a student's w
// (sums denominators): losses[lane] = -sum_j (t / sum t) log(max(w / Z, kWeightClamp)), and w
// becomes the gradient of the loss by each weight with the denominator's share in it, -(t / sum t)
// [not clamped] / w + (sum_j (t / sum t) [not clamped]) / Z, times scale.
void cross_entropy_tile(const float* teacher,
                        const float* teacher_sums,
                        const float* denominators,
                        std::int64_t ld,
                        std::int64_t keys,
                        std::int64_t lanes,
                        float scale,
                        float* student,
                        float* losses);

// phi [F, lanes] from z [f, lanes], clamped from below but for the identity.
void activate_tile(const FeatureMapOptions& options,
                   const float* z,
                   std::int64_t ld,
                   std::int64_t projected,
                   std::int64_t lanes,
                   float* phi);

// dz [f, lanes] from phi and its gradient [F, lanes].
void activate_tile_backward(const FeatureMapOptions& options,
                            const float* phi,
                            const float* dphi,
                            std::int64_t ld,
                            std::int64_t projected,
                            std::int64_t lanes,
                            float* dz);

}  // namespace hedgerow::kernels::cpu
