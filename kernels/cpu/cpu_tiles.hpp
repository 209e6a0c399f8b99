// The plain arithmetic of one tile: transposes, conversions and sums on row-major fp32 scratch
// whose rows are padded to whole vectors of 16 floats (tile_products.hpp multiplies them). Called
// by the *_cpu.cpp drivers from inside at::parallel_for; nothing here allocates, starts threads or
// looks at tensors, and every result depends on its inputs alone: no order of threads, no reduction
// across tiles.
#pragma once

#include "kernels/cpu/tile_products.hpp"

namespace hedgerow::kernels::cpu {

// out [cols, padded(rows)] = in^T; the padding is zero.
void transpose(const float* in,
               std::int64_t ld_in,
               std::int64_t rows,
               std::int64_t cols,
               float* out,
               std::int64_t ld_out);

// out [rows, padded(cols)] = in [rows, cols] of bf16 or fp32, widened; the padding is zero.
void widen_rows(const void* in,
                c10::ScalarType dtype,
                std::int64_t ld_in,
                std::int64_t rows,
                std::int64_t cols,
                float* out,
                std::int64_t ld_out);

// out [rows, cols] of bf16 (rounded to nearest even) or fp32 = in [rows, cols], row i times
// scale[i] where given.
void narrow_rows(const float* in,
                 std::int64_t ld_in,
                 std::int64_t rows,
                 std::int64_t cols,
                 const float* scale,
                 void* out,
                 c10::ScalarType dtype,
                 std::int64_t ld_out);

// out[i] = a_i . b_i for rows of padded(cols) floats.
void row_dots(const float* a,
              std::int64_t ld_a,
              const float* b,
              std::int64_t ld_b,
              std::int64_t rows,
              std::int64_t cols,
              float* out);

// out = a + b over count floats; out may be either of them.
void add_floats(const float* a, const float* b, std::int64_t count, float* out);

// x -= y over count floats padded to whole vectors; the padding of x becomes 0.
void subtract(const float* y, std::int64_t count, float* x);

// out [rows, padded(cols)] = in's row i times scale[i].
void scale_rows(const float* in,
                std::int64_t ld_in,
                const float* scale,
                std::int64_t rows,
                std::int64_t cols,
                float* out,
                std::int64_t ld_out);

// The following see [rows, lanes] tiles with one query or key a lane; lanes is a multiple of 16.

// out[lane] = sum over rows of weight[row] * x[row][lane]; plain column sums without weights. Added
// to out with `add`.
void column_sums(const float* x,
                 std::int64_t ld,
                 std::int64_t rows,
                 std::int64_t lanes,
                 const float* weight,
                 float* out,
                 bool add);

// out[lane] = sum over rows of a[row][lane] * b[row][lane].
void column_dots(const float* a,
                 const float* b,
                 std::int64_t ld,
                 std::int64_t rows,
                 std::int64_t lanes,
                 float* out);

// x[row][lane] += weight[row] * lane_values[lane]; weight 1 where absent.
void add_outer(float* x,
               std::int64_t ld,
               std::int64_t rows,
               std::int64_t lanes,
               const float* weight,
               const float* lane_values);

// x[row][lane] += values[row].
void add_columns(
    float* x, std::int64_t ld, std::int64_t rows, std::int64_t lanes, const float* values);

// out[row] += sum over the first `count` lanes of x[row][lane] * lane_values[lane] (1 where
// absent).
void add_row_sums(const float* x,
                  std::int64_t ld,
                  std::int64_t rows,
                  std::int64_t count,
                  const float* lane_values,
                  float* out);

}  // namespace hedgerow::kernels::cpu
