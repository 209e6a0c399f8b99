// What worker/device.cpp needs of CUDA's runtime: cuda_device.cpp in builds with it,
// cuda_device_absent.cpp in others.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace hedgerow::worker::cuda {

[[nodiscard]] bool is_built();
[[nodiscard]] int num_devices();  // visible ones; 0 without a driver
// The calling thread's device from here on, with the settings that resolve_device promises.
[[nodiscard]] at::Device use_device(int index);
[[nodiscard]] std::string model(const at::Device& device);
[[nodiscard]] std::uint64_t memory_bytes(const at::Device& device);

}  // namespace hedgerow::worker::cuda
