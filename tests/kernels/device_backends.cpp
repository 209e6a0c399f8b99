#include "tests/kernels/device_backends.hpp"

#include <ATen/Context.h>

namespace hedgerow::kernels::testing {

void DeviceBackends::SetUp() {
  if (device() == at::kCUDA && !at::hasCUDA()) {
    GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
  }
}

Outcome DeviceBackends::hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const {
  return differentiate(
      [&](const AttentionInputs& x) {
        return hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, backend());
      },
      on_device(shape, inputs));
}

void DeviceBackends::expect_hybrid(const AttentionCase& shape,
                                   const AttentionInputs& inputs) const {
  const Outcome exact = reference_outcome(shape, inputs, at::kDouble);
  if (backend() == Backend::kAten) {
    expect_outcome(
        shape, hybrid(shape, inputs), reference_outcome(shape, inputs, shape.dtype), exact);
  } else {
    expect_entry_outcome(shape, hybrid(shape, inputs), plain_hybrid_outcome(shape, inputs), exact);
  }
}

}  // namespace hedgerow::kernels::testing
