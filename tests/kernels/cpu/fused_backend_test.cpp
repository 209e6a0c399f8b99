// The fused backends on the CPU, which the entries take there: the cases of device_*_test.cpp.
#include "tests/kernels/device_backends.hpp"

namespace hedgerow::kernels::testing {
namespace {

HEDGEROW_INSTANTIATE_DEVICE_BACKENDS(FusedOnCpu, Backend::kAuto, at::kCPU);

}  // namespace
}  // namespace hedgerow::kernels::testing
