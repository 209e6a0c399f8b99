// SwiGLU and its gradient; rows, dtypes and forms as in norm.hpp.
#pragma once

#include "worker/model/layer/norm.hpp"

namespace hedgerow::worker {

// gate_up [..., 2 I] (gate, then up) -> silu(gate) * up, [..., I].
at::Tensor swiglu(const at::Tensor& gate_up);

// The gradient of swiglu in gate_up [..., 2 I], given that of its output [..., I].
at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up);

// The same by ATen operations in fp32, on any device.
at::Tensor plain_swiglu(const at::Tensor& gate_up);
at::Tensor plain_swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up);

}  // namespace hedgerow::worker
