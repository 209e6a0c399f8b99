#include "kernels/taylor_recurrence.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "kernels/checks.hpp"
#include "kernels/exponential_maps.hpp"

namespace hedgerow::kernels {
namespace {

// Features of a prefill that exist at a time.
constexpr std::int64_t kFeaturesAtATime = std::int64_t{1} << 24;

std::int64_t order_of(const TaylorState& state) {
  return static_cast<std::int64_t>(state.orders.size()) - 1;
}

// phi^n(x), n = 0 .. order, of x [.., D].
std::vector<at::Tensor> features(const at::Tensor& x, const TaylorState& state) {
  const double scale = exponential_map_scale(x.size(-1));
  return monomials(x.to(state.orders[0].scalar_type()) * scale, order_of(state));
}

void check_tokens(const at::Tensor& k, const at::Tensor& v, const TaylorState& state) {
  TORCH_CHECK(!state.orders.empty(), "taylor recurrence: the state must be made, found none");
  const at::Tensor& zeroth = state.orders[0];
  const std::int64_t B = zeroth.size(0), G = zeroth.size(1), D = zeroth.size(3) - 1;
  for (const auto& [name, x] : {std::pair{"k", &k}, {"v", &v}}) {
    TORCH_CHECK(x->dim() == 4 && x->size(0) == B && x->size(1) == G && x->size(3) == D &&
                    x->size(2) == k.size(2) && x->is_floating_point(),
                "taylor recurrence: ",
                name,
                " must be of a floating dtype and have the state's shape [",
                B,
                ", ",
                G,
                ", T, ",
                D,
                "], found ",
                x->scalar_type(),
                " ",
                describe(x->sizes()));
    TORCH_CHECK(x->device() == zeroth.device(),
                "taylor recurrence: ",
                name,
                " must be on the state's device ",
                zeroth.device(),
                ", found ",
                x->device());
  }
}

}  // namespace

TaylorState make_taylor_state(std::int64_t batch,
                              std::int64_t num_kv_heads,
                              std::int64_t head_dim,
                              std::int64_t order,
                              at::ScalarType dtype,
                              const at::Device& device) {
  TORCH_CHECK(order >= 0 && head_dim >= 1,
              "taylor recurrence: the order must be 0 or more and head_dim 1 or more, found ",
              order,
              " and ",
              head_dim);
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble,
              "taylor recurrence: the state must be float32 or float64, found ",
              dtype);
  const std::int64_t rows = num_monomials(head_dim, order);
  TORCH_CHECK(rows <= kMaxTaylorSums / (head_dim + 1),
              "taylor recurrence: order ",
              order,
              " of head_dim ",
              head_dim,
              " needs C(",
              head_dim + order,
              ", ",
              order,
              ") = ",
              static_cast<double>(rows),
              " monomials times ",
              head_dim + 1,
              " sums a head, expected at most ",
              kMaxTaylorSums,
              " in all; lower the order");
  TaylorState state;
  for (std::int64_t n = 0; n <= order; ++n) {
    const std::int64_t count = num_monomials(head_dim - 1, n);
    state.orders.push_back(at::zeros({batch, num_kv_heads, count, head_dim + 1},
                                     at::TensorOptions(device).dtype(dtype)));
  }
  return state;
}

void taylor_prefill(const at::Tensor& k, const at::Tensor& v, TaylorState& state) {
  const c10::NoGradGuard no_grad;
  check_tokens(k, v, state);
  const std::int64_t B = k.size(0), G = k.size(1), T = k.size(2), D = k.size(3);
  const std::int64_t per_token = B * G * num_monomials(D, order_of(state));
  const std::int64_t most = std::max<std::int64_t>(1, kFeaturesAtATime / per_token);
  for (std::int64_t first = 0; first < T; first += most) {
    const std::int64_t count = std::min(most, T - first);
    const std::vector<at::Tensor> phi = features(k.narrow(2, first, count), state);
    // A column of ones beside v carries the denominator through the same product.
    const at::Tensor values = at::constant_pad_nd(
        v.narrow(2, first, count).to(state.orders[0].scalar_type()), {0, 1}, 1.0);
    for (std::size_t n = 0; n < phi.size(); ++n) {
      state.orders[n].add_(at::matmul(phi[n].transpose(-1, -2), values));
    }
  }
}

at::Tensor taylor_step(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       TaylorState& state) {
  const c10::NoGradGuard no_grad;
  TORCH_CHECK(k.dim() == 3 && v.dim() == 3,
              "taylor recurrence: k and v of a step must be [B, G, D], found ",
              describe(k.sizes()),
              " and ",
              describe(v.sizes()));
  const std::int64_t B = k.size(0), G = k.size(1), D = k.size(2);
  TORCH_CHECK(q.dim() == 3 && q.size(0) == B && q.size(1) >= 1 && G >= 1 && q.size(1) % G == 0 &&
                  q.size(2) == D && q.is_floating_point() && q.device() == k.device(),
              "taylor recurrence: q must be [",
              B,
              ", a multiple of ",
              G,
              ", ",
              D,
              "] of a floating dtype on k's device ",
              k.device(),
              ", found ",
              describe(q.sizes()),
              " ",
              q.scalar_type(),
              " on ",
              q.device());
  taylor_prefill(k.unsqueeze(2), v.unsqueeze(2), state);
  // Query heads that share keys are rows of one product.
  const std::vector<at::Tensor> phi = features(q.unflatten(1, {G, q.size(1) / G}), state);
  at::Tensor sums;
  for (std::size_t n = 0; n < phi.size(); ++n) {
    const at::Tensor share = at::matmul(phi[n], state.orders[n]);  // [B, G, H / G, D + 1]
    sums = sums.defined() ? sums.add_(share) : share;
  }
  return (sums.narrow(-1, 0, D) / sums.narrow(-1, D, 1)).flatten(1, 2).to(q.scalar_type());
}

}  // namespace hedgerow::kernels
