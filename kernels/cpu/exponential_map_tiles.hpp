// Positive random features and Taylor features on one tile, x86 vectors: exponential_maps.hpp for
// the fused CPU backends. Tiles are [rows, lanes] with row stride ld, a token a lane, lanes a
// multiple of 16; scale is D^-1/4, and z, x are not scaled yet. Gradients come from phi alone: no z
// is kept.
#pragma once

#include <cstdint>

#include "kernels/problem/feature_map.hpp"

namespace hedgerow::kernels::cpu {

// phi [f, lanes] from z = Omega^T x [f, lanes]; squares[lane] = |x|^2, null for a query.
void positive_random_tile(const float* z,
                          const float* squares,
                          float scale,
                          std::int64_t ld,
                          std::int64_t projected,
                          std::int64_t lanes,
                          float* phi);

// dz [f, lanes] from phi and its gradient. For keys, sums[lane] = sum phi dphi: through |x|^2, dx
// loses scale^2 sums x (subtract_scaled_rows). Null for a query, whose largest features give back
// the sum, sharing alike.
void positive_random_tile_backward(const float* phi,
                                   const float* dphi,
                                   float scale,
                                   std::int64_t ld,
                                   std::int64_t projected,
                                   std::int64_t lanes,
                                   float* dz,
                                   float* sums);

// phi [C(f + order, order), lanes] from z [f, lanes], in the order of monomials(); order 1 to 3.
void taylor_tile(const float* z,
                 float scale,
                 std::int64_t order,
                 std::int64_t ld,
                 std::int64_t projected,
                 std::int64_t lanes,
                 float* phi);

// dz [f, lanes]; x' is read from phi's own features of degree 1.
void taylor_tile_backward(const float* phi,
                          const float* dphi,
                          float scale,
                          std::int64_t order,
                          std::int64_t ld,
                          std::int64_t projected,
                          std::int64_t lanes,
                          float* dz);

// out [rows, padded(cols)] -= factor values[row] x [rows, padded(cols)].
void subtract_scaled_rows(const float* x,
                          std::int64_t ld_x,
                          const float* values,
                          float factor,
                          std::int64_t rows,
                          std::int64_t cols,
                          float* out,
                          std::int64_t ld_out);

}  // namespace hedgerow::kernels::cpu
