#include "kernels/cuda/attention_transfer_cuda.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/cuda/hybrid_backward_cuda.hpp"
#include "kernels/cuda/stream.hpp"
#include "kernels/cuda/transfer/transfer_launch.hpp"
#include "kernels/cuda/transfer_loss_cuda.hpp"

namespace hedgerow::kernels::cuda {
namespace {

// y [B, H, T, D] in [B, T, H, D] memory, as o_proj reads it.
at::Tensor make_output(const at::Tensor& q, OutputRows& rows) {
  const at::Tensor y =
      at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  rows = {bf16_out(y), y.stride(0), y.stride(1), y.stride(2)};
  return y;
}

std::string why_no_softmax(const at::Tensor& q) {
  if (q.scalar_type() != at::kBFloat16) {
    return c10::str("the fused CUDA teacher takes bfloat16, not ", q.scalar_type());
  }
  if (q.size(3) != 64 && q.size(3) != 128) {
    return c10::str("the fused CUDA teacher has head_dim 64 and 128, not ", q.size(3));
  }
  return why_not_rows(q);
}

at::Tensor softmax_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const c10::DeviceGuard guard(q.device());
  std::vector<at::Tensor> kept;
  SoftmaxArguments a;
  a.B = static_cast<int>(q.size(0));
  a.H = static_cast<int>(q.size(1));
  a.G = static_cast<int>(k.size(1));
  a.T = static_cast<int>(q.size(2));
  a.q = rows_of(q, kept);
  a.k = rows_of(k, kept);
  a.v = rows_of(v, kept);
  const at::Tensor y = make_output(q, a.y);
  launch_softmax(static_cast<int>(q.size(3)), a, current_stream(q.device()));
  return y;
}

std::string why_no_transfer(const at::Tensor& q,
                            const HybridParameters& parameters,
                            const HybridOptions& options) {
  const c10::DeviceGuard guard(q.device());
  const std::string reason = hybrid_backend()->why_not(q, parameters, options, false);
  if (!reason.empty()) {
    return reason;
  }
  return why_not_shared("the fused attention transfer",
                        transfer_shared_bytes(kernel_shape(q, parameters, options)));
}

TransferResult transfer_cuda(const HybridProblem& problem, const HybridNeeds& needs) {
  const c10::DeviceGuard guard(problem.q.device());
  Prepared p = prepare(problem);
  const auto [B, H, G, T, D] = problem.shape;
  const at::TensorOptions options = problem.q.options(), sums = options.dtype(at::kFloat);
  const Walked keys = walk_keys(p, options);
  const auto elements = static_cast<double>(problem.q.numel());
  TransferResult result;
  TransferArguments a;
  a.inputs = p.inputs;
  a.far = keys.pointers();
  a.features_k = keys.features_pointer();
  result.y_true = make_output(problem.q, a.y_true);
  const at::Tensor squared = at::empty({B, H, p.tiles, kWarpsOfTile}, sums);
  a.squared = floats(squared);
  RowGradients rows;
  const bool backward = needs_any(needs);
  if (backward) {
    rows.dn = at::empty({B, H, T, D}, options);
    rows.beta = at::empty({B, H, T}, sums);
    rows.totals = problem.windowed() ? at::empty({B, H, T}, sums) : at::Tensor();
    a.factor = static_cast<float>(2.0 / elements);
    a.dn = bf16_out(rows.dn);
    a.beta = floats(rows.beta);
    a.totals = floats(rows.totals);
  }
  launch_transfer(p.shape, a, p.stream);
  result.mse.loss = (squared.sum(at::kDouble) / elements).to(at::kFloat);
  if (backward) {
    result.mse.gradients = gradients_of(problem, p, keys, rows, needs);
  }
  return result;
}

}  // namespace

const TransferBackend* transfer_backend() {
  static constexpr TransferBackend kBackend{&why_no_softmax,
                                            &softmax_cuda,
                                            &why_no_transfer,
                                            &transfer_cuda,
                                            &why_no_cross_entropy,
                                            &cross_entropy_cuda};
  return &kBackend;
}

}  // namespace hedgerow::kernels::cuda
