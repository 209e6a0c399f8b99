// The fused forms on the CPU, which the entries take there: the cases of device_*_test.cpp.
#include "tests/kernels/device_forms.hpp"

namespace hedgerow::kernels::testing {
namespace {

HEDGEROW_INSTANTIATE_DEVICE_FORMS(FusedOnCpu, Form::kCpu, at::kCPU);

}  // namespace
}  // namespace hedgerow::kernels::testing
