// The device beside the CPU that a test binary was built for: a GPU (other_device_gpu.cpp) or the
// foreign device (other_device_foreign.cpp).
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace hedgerow::tests {

std::string why_no_other_device();  // empty: there is one
at::Device other_device();

}  // namespace hedgerow::tests
