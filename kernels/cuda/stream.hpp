// The stream that ATen queues work on now.
#pragma once

#include <c10/core/Device.h>

#include "kernels/cuda/tile/device.hpp"

namespace hedgerow::kernels::cuda {

[[nodiscard]] Stream current_stream(c10::Device device);

}  // namespace hedgerow::kernels::cuda
