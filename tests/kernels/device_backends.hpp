// The cases that every backend passes on every device. The tests of device_*_test.cpp are compiled
// into two binaries: kernels_test runs them on CPU tensors, with the fused backend (what
// the operations choose there) and with the ATen backend asked for by name, and gpu_kernels_test on
// CUDA tensors with the ATen backend. What only one backend promises is in the tests that are named
// after it or after the entries; the hybrid's fused CUDA backend, whose products are bf16, has
// cuda_hybrid_test.cpp.
#pragma once

#include "kernels/decode.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels::testing {

struct BackendOnDevice {
  Backend backend;
  at::DeviceType device;
};

class DeviceBackends : public ::testing::TestWithParam<BackendOnDevice> {
 protected:
  // Skips, with the reason, where the device is not there.
  void SetUp() override;

  [[nodiscard]] at::DeviceType device() const { return GetParam().device; }
  // What the operations under test are asked for.
  [[nodiscard]] Backend backend() const { return GetParam().backend; }

  // The inputs in the case's dtype on the device, as leaves.
  [[nodiscard]] AttentionInputs on_device(const AttentionCase& shape,
                                          const AttentionInputs& inputs) const {
    return inputs.as(shape.dtype, at::kFloat, device());
  }
  [[nodiscard]] Outcome hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const;
  void expect_hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const;
};
class DeviceHybrid : public DeviceBackends {};
class DeviceSoftmax : public DeviceBackends {};
class DeviceLoss : public DeviceBackends {};
class DeviceDecode : public DeviceBackends {};

inline constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};

// Runs all suites with one backend on one device; for the one file of a binary that says which.
#define HEDGEROW_INSTANTIATE_DEVICE_BACKENDS(name, backend, device)                                \
  INSTANTIATE_TEST_SUITE_P(                                                                        \
      name, DeviceHybrid, ::testing::Values(BackendOnDevice{backend, device}));                    \
  INSTANTIATE_TEST_SUITE_P(                                                                        \
      name, DeviceSoftmax, ::testing::Values(BackendOnDevice{backend, device}));                   \
  INSTANTIATE_TEST_SUITE_P(name, DeviceLoss, ::testing::Values(BackendOnDevice{backend, device})); \
  INSTANTIATE_TEST_SUITE_P(name, DeviceDecode, ::testing::Values(BackendOnDevice{backend, device}))

}  // namespace hedgerow::kernels::testing
