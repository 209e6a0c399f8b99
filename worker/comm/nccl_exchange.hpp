// What worker/comm/tensor_exchange.cpp needs of NCCL: nccl_exchange.cpp in builds with it,
// nccl_exchange_absent.cpp in others.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "worker/comm/tensor_exchange.hpp"

namespace hedgerow::worker::nccl {

// The version of the library that is loaded, as 22809 for 2.28.9; 0: this build has none.
[[nodiscard]] int version();
// The version of the header that this was compiled with; 0: this build has none.
[[nodiscard]] int built_version();

struct Gpu {
  std::string uuid;     // 32 hexadecimal digits
  std::string slot;     // on the bus of its host: "0000:3b:00"
  int num_visible = 0;  // that this process may choose from, this one among them
};
[[nodiscard]] Gpu gpu_of(const at::Device& device);

// Collective: one NCCL communicator over all ranks of `communicator`, which carries its id and
// outlives it. Each rank must have a GPU of its own. Operations run in the device's current stream
// of the calling thread, which is waited for; every call has the communicator's deadline, the
// connecting no more than kCommDeadline; a rank may be its own peer. The destructor waits for the
// other ranks as patiently as for files (kLoadDeadline), or for none if an exception is on its way.
// Throws storage::Error kUnavailable.
[[nodiscard]] std::unique_ptr<TensorExchange> connect(Communicator& communicator,
                                                      const at::Device& device);

}  // namespace hedgerow::worker::nccl
