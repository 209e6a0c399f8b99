// A device that stands in for a GPU where there is none: tensors on it are not CPU tensors, their
// memory cannot be read or written but by copies, and an operation that is given CPU tensors beside
// its own is refused, as CUDA does. Operations run on the CPU. What a test on it shows is that code
// moves what it must and assumes nothing of the device; speed and rounding are the CPU's.
#pragma once

#include <c10/core/Device.h>

namespace hedgerow::tests {

at::Device foreign_device();

}  // namespace hedgerow::tests
