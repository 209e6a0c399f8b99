#include "tests/kernels/device_forms.hpp"

#include <ATen/Context.h>

namespace hedgerow::kernels::testing {

void DeviceForms::SetUp() {
  if (device() == at::kCUDA && !at::hasCUDA()) {
    GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
  }
}

const Forms& DeviceForms::forms() const {
  static const Forms kAtenForms{&aten::hybrid_attention,
                                &aten::linear_share,
                                &aten::softmax_attention,
                                &aten::softmax_attention_trainable,
                                &aten::transfer_mse,
                                &aten::transfer_cross_entropy,
                                &aten::prefill_state,
                                &aten::decode_step};
  static const Forms kEntries{&hybrid_attention,
                              &linear_share,
                              &softmax_attention,
                              &softmax_attention_trainable,
                              &transfer_mse,
                              &transfer_cross_entropy,
                              &prefill_state,
                              &decode_step};
  return GetParam().form == Form::kAten ? kAtenForms : kEntries;
}

Outcome DeviceForms::hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const {
  return differentiate(
      [&](const AttentionInputs& x) {
        return forms().hybrid(x.q, x.k, x.v, x.parameters, shape.options);
      },
      on_device(shape, inputs));
}

void DeviceForms::expect_hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const {
  expect_outcome(shape,
                 hybrid(shape, inputs),
                 reference_outcome(shape, inputs, shape.dtype),
                 reference_outcome(shape, inputs, at::kDouble));
}

}  // namespace hedgerow::kernels::testing
