#include "worker/model/layer/mlp.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "worker/model/layer/cpu_rows.hpp"

namespace hedgerow::worker {

at::Tensor swiglu(const at::Tensor& gate_up) {
  RECORD_USER_SCOPE("hedgerow::swiglu");
  if (has_cpu_rows(gate_up)) return cpu::swiglu(gate_up.contiguous());
  // Both halves begin at a multiple of 16 bytes.
  if (const auto* cuda = fused_for(gate_up); cuda != nullptr && gate_up.size(-1) % 16 == 0)
    return cuda->swiglu(gate_up);
  return plain_swiglu(gate_up);
}

at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up) {
  RECORD_USER_SCOPE("hedgerow::swiglu_backward");
  if (const auto* cuda = fused_for(gate_up); cuda != nullptr && gate_up.size(-1) % 16 == 0)
    return cuda->swiglu_backward(output_gradient, gate_up);
  if (!has_cpu_rows(gate_up)) return plain_swiglu_backward(output_gradient, gate_up);
  return cpu::swiglu_backward(output_gradient.contiguous(), gate_up.contiguous());
}

at::Tensor plain_swiglu(const at::Tensor& gate_up) {
  const auto halves = gate_up.to(at::kFloat).chunk(2, -1);
  return (at::silu(halves[0]) * halves[1]).to(gate_up.scalar_type());
}

at::Tensor plain_swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up) {
  const auto halves = gate_up.to(at::kFloat).chunk(2, -1);
  const at::Tensor dy = output_gradient.to(at::kFloat);
  const at::Tensor sigmoid = at::sigmoid(halves[0]);
  const at::Tensor silu = halves[0] * sigmoid;
  const at::Tensor gate = dy * halves[1] * (sigmoid + silu * (1.0 - sigmoid));
  return at::cat({gate, dy * silu}, -1).to(gate_up.scalar_type());
}

}  // namespace hedgerow::worker
