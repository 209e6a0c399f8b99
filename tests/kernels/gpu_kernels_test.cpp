// The entries on CUDA tensors: the cases of device_*_test.cpp.
#include "tests/kernels/device_forms.hpp"

namespace hedgerow::kernels::testing {
namespace {

HEDGEROW_INSTANTIATE_DEVICE_FORMS(Cuda, Form::kAten, at::kCUDA);

}  // namespace
}  // namespace hedgerow::kernels::testing
