// The attention weights of teacher and student, of some query rows of one sequence: what a layer's
// shares of window, sinks and linear branch are measured from, and what its attention maps show.
// R x T, never T x T. No autograd and no random numbers: looking changes nothing that is trained.
// Errors as hybrid_attention's (kernels/hybrid_attention.hpp). Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/hybrid_attention.hpp"

namespace hedgerow::worker {

// At most 64 queries spread evenly over T tokens, ascending, the last token among them.
[[nodiscard]] std::vector<std::int64_t> sampled_rows(std::int64_t T);

// q [H, T, D] and k [G, T, D] of one sequence -> the teacher's softmax weights [H, R, T], fp32; 0
// at later keys.
[[nodiscard]] at::Tensor teacher_rows(const at::Tensor& q,
                                      const at::Tensor& k,
                                      const std::vector<std::int64_t>& rows);

// Weights of the hybrid, divided by its denominator: p_ij / Z_i, sinks included, and l_ij / Z_i,
// each [H, R, T] fp32 and 0 where the other is not. Their sum is the student's attention.
struct StudentRows {
  at::Tensor window, linear;
};
[[nodiscard]] StudentRows student_rows(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const kernels::HybridParameters& parameters,
                                       const kernels::HybridOptions& options,
                                       const std::vector<std::int64_t>& rows);

// Means over heads and rows of the weight on the first num_sinks keys, on the window's other keys
// and on the linear branch; their sum is 1.
struct AttentionShares {
  double window = 0.0, sinks = 0.0, linear = 0.0;
};
[[nodiscard]] AttentionShares attention_shares(const StudentRows& student, std::int64_t num_sinks);

// A map a head, of at most 8 heads spread evenly, ascending: {"head", "rows", "columns", "softmax",
// "student"}. The two are weights [H, R, T]; of each the keys are summed into at most 64 columns,
// a weight w becomes the byte round(255 clamp(1 + log10(w) / 4, 0, 1)), and the bytes [rows,
// columns], row by row, become base64.
[[nodiscard]] std::vector<nlohmann::json> attention_maps(const at::Tensor& softmax,
                                                         const at::Tensor& student);

}  // namespace hedgerow::worker
