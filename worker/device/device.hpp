// Where a process computes: `plan.device` and `--device` as a device of this machine. A build
// without CUDA knows the CPU alone, and says so where a GPU lies idle.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace hedgerow::worker {

// This process's number among those of one host, as the launcher says: that of Open MPI, MPICH,
// Intel MPI, Cray or MVAPICH2, then Slurm's; else 0.
[[nodiscard]] int local_rank_of_environment();

// "cpu", "cuda", or "auto": CUDA where this build has it and a device is visible. Of several
// devices it is number local_rank modulo their count, so that processes of one host spread over
// them. Choosing CUDA makes it the calling thread's device and turns off what makes bytes differ
// from run to run or fp32 products lose bits (TF32, reduced-precision sums, growing cuBLAS
// workspaces): call it before any other use of the device. Throws kUsage for another word and for
// "cuda" in a build without it, kUnavailable for "cuda" where no device is visible and for "auto"
// too where there is one that CUDA cannot start.
[[nodiscard]] at::Device resolve_device(const std::string& word,
                                        int local_rank = local_rank_of_environment());

// The processor's or GPU's model: byte-equality is promised within one.
[[nodiscard]] std::string device_model(const at::Device& device);

// What tasks may take: the GPU's memory, or as much of the host's as this process may use.
[[nodiscard]] std::uint64_t device_memory_bytes(const at::Device& device);

}  // namespace hedgerow::worker
