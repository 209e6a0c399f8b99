// What worker/device/device.cpp needs of CUDA's runtime: cuda_device.cpp in builds with it,
// cuda_device_absent.cpp in others.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace hedgerow::worker::cuda {

[[nodiscard]] bool is_built();
[[nodiscard]] int num_devices();  // visible ones; 0 without a driver
// CUDA's own words for num_devices() == 0 ("driver too old ..."); empty where there is a device.
[[nodiscard]] std::string why_no_device();
// CUDA's words where every call of this process fails from now on (an illegal address, a failed
// launch, an ECC error); empty where the device computes. Waits for what was launched.
[[nodiscard]] std::string why_unusable(const at::Device& device);
// The calling thread's device from here on, with the settings that resolve_device promises.
[[nodiscard]] at::Device use_device(int index);
[[nodiscard]] at::Device current_device();  // of the calling thread
[[nodiscard]] std::string model(const at::Device& device);
[[nodiscard]] std::uint64_t memory_bytes(const at::Device& device);

// Bytes. LibTorch reserves in large pieces and allocates tensors from them; what others took, and
// the contexts of all, is the rest: total - free - reserved.
struct Memory {
  std::uint64_t total = 0, free = 0, reserved = 0, allocated = 0;
};
[[nodiscard]] Memory memory(const at::Device& device);  // asks the driver
// Where the device sits in its host: two processes with the same one share its memory.
[[nodiscard]] std::uint64_t slot(const at::Device& device);
// Largest bytes of tensors and of the reserve since reset_peaks.
struct Peaks {
  std::uint64_t allocated = 0, reserved = 0;
};
[[nodiscard]] Peaks peaks(const at::Device& device);  // zeros before the first tensor
void reset_peaks(const at::Device& device);
// Gives what is reserved and holds no tensor back to the device.
void release_reserve();

}  // namespace hedgerow::worker::cuda
