#include "tests/kernels/device_backends.hpp"

#include <ATen/Context.h>

namespace hedgerow::kernels::testing {

void DeviceBackends::SetUp() {
  if (device() == at::kCUDA && !at::hasCUDA()) {
    GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
  }
}

const Backends& DeviceBackends::backends() const {
  static const Backends kAtenBackends{&aten::hybrid_attention,
                                      &aten::linear_share,
                                      &aten::softmax_attention,
                                      &aten::softmax_attention_trainable,
                                      &aten::transfer_mse,
                                      &aten::transfer_cross_entropy,
                                      &aten::prefill_state,
                                      &aten::decode_step};
  static const Backends kEntries{&hybrid_attention,
                                 &linear_share,
                                 &softmax_attention,
                                 &softmax_attention_trainable,
                                 &transfer_mse,
                                 &transfer_cross_entropy,
                                 &prefill_state,
                                 &decode_step};
  return GetParam().backend == Backend::kAten ? kAtenBackends : kEntries;
}

Outcome DeviceBackends::hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const {
  return differentiate(
      [&](const AttentionInputs& x) {
        return backends().hybrid(x.q, x.k, x.v, x.parameters, shape.options);
      },
      on_device(shape, inputs));
}

void DeviceBackends::expect_hybrid(const AttentionCase& shape,
                                   const AttentionInputs& inputs) const {
  const Outcome exact = reference_outcome(shape, inputs, at::kDouble);
  if (GetParam().backend == Backend::kAten) {
    expect_outcome(
        shape, hybrid(shape, inputs), reference_outcome(shape, inputs, shape.dtype), exact);
  } else {
    expect_entry_outcome(shape, hybrid(shape, inputs), plain_hybrid_outcome(shape, inputs), exact);
  }
}

}  // namespace hedgerow::kernels::testing
