// Taylor attention of any order as a recurrence (arXiv 2507.23632 section 3.1), for small head
// dimensions. With s = q.k / sqrt(D) = q'.k' and P(s) = sum_n s^n / n! for n <= order:
//
//   y_t = sum_{s <= t} P(s_ts) v_s / sum_{s <= t} P(s_ts) = (sum_n phi^n(q_t) H^n_t)[v] / (..)[1]
//   H^n_t = H^n_{t-1} + phi^n(k_t) [v_t, 1]
//
// phi^n are the monomials of degree n in x', C(D + n - 1, n) of them and not D^n: symmetric
// products are merged (feature_map.hpp). The order is a property of the state, and constant memory
// the point: order 10 is 43,758 sums a value column for D = 8, and 7e11 for D = 64. Even orders
// have positive denominators; odd ones give what the arithmetic gives. Plain ATen, no autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace hedgerow::kernels {

struct TaylorState {
  std::vector<at::Tensor> orders;  // H^n [B, G, C(D + n - 1, n), D + 1], n = 0 .. order
};

// Numbers that a state may hold a kv head: 64 MiB of fp32.
inline constexpr std::int64_t kMaxTaylorSums = std::int64_t{1} << 24;

// No token seen; dtype is fp32 or fp64. Throws c10::Error with the arithmetic if the order is
// negative or needs more than kMaxTaylorSums.
TaylorState make_taylor_state(std::int64_t batch,
                              std::int64_t num_kv_heads,
                              std::int64_t head_dim,
                              std::int64_t order,
                              at::ScalarType dtype,
                              const at::Device& device);

// k, v [B, G, T, D] of any floating dtype join the state. Wrong shapes throw c10::Error naming the
// argument, what was expected and what was found.
void taylor_prefill(const at::Tensor& k, const at::Tensor& v, TaylorState& state);

// One token a row: q [B, H, D] with H a multiple of G, k and v [B, G, D] -> y [B, H, D] of q's
// dtype; the token joins the state first. Errors as taylor_prefill's.
at::Tensor taylor_step(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       TaylorState& state);

}  // namespace hedgerow::kernels
