#include "worker/device/device.hpp"

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <system_error>

#include "coordinator/machine/gpus.hpp"
#include "coordinator/machine/memory.hpp"
#include "storage/base/error.hpp"
#include "worker/device/cuda_device.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

// Open MPI, Intel MPI and MPICH (hydra), Cray PMI, Cray PALS, MVAPICH2, Slurm. Slurm's last: where
// an MPI launcher starts its daemon by srun, all ranks of a node inherit the daemon's.
constexpr std::array kLocalRankVariables = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                            "MPI_LOCALRANKID",
                                            "PMI_LOCAL_RANK",
                                            "PALS_LOCAL_RANKID",
                                            "MV2_COMM_WORLD_LOCAL_RANK",
                                            "SLURM_LOCALID"};
constexpr const char* kOtherDevice = "set plan.device (or --device) to \"auto\" or \"cpu\"";

void note_idle_gpu() {
  if (cuda::is_built() || machine::num_visible_gpus() == 0) return;
  std::fputs(
      "hedgerow-worker: this machine has a GPU, but this build has no CUDA and computes on the "
      "CPU; build with 'cmake --preset cuda' to use it\n",
      stderr);
}

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "cpu";
}

}  // namespace

int local_rank_of_environment() {
  for (const char* name : kLocalRankVariables) {
    const char* value = std::getenv(name);
    int rank = 0;
    if (value == nullptr) continue;
    const std::string_view digits(value);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (parsed.ec == std::errc() && rank >= 0) return rank;
  }
  return 0;
}

at::Device resolve_device(const std::string& word, int local_rank) {
  if (word != "auto" && word != "cpu" && word != "cuda") {
    throw Error(ErrorKind::kUsage,
                "device: expected auto, cpu or cuda, found '" + word + "'; " + kOtherDevice);
  }
  if (word == "cpu") return at::kCPU;
  if (const int count = cuda::num_devices(); count > 0) return cuda::use_device(local_rank % count);
  if (cuda::is_built() && machine::num_visible_gpus() > 0) {
    // The CPU in its place would spend hours of a paid GPU without a word.
    throw Error(ErrorKind::kUnavailable,
                "device: this machine has " + std::to_string(machine::num_visible_gpus()) +
                    " GPUs, but CUDA cannot start: " + cuda::why_no_device() +
                    "; mend the driver ('hedgerow doctor' says which one is needed), or compute "
                    "on the processor with --device cpu");
  }
  if (word == "auto") {
    note_idle_gpu();
    return at::kCPU;
  }
  if (!cuda::is_built()) {
    throw Error(ErrorKind::kUsage,
                std::string("device: cuda is asked for, but this build has no CUDA; build with "
                            "'cmake --preset cuda', or ") +
                    kOtherDevice);
  }
  throw Error(ErrorKind::kUnavailable,
              std::string("device: cuda is asked for, but no GPU is visible; look at nvidia-smi "
                          "and CUDA_VISIBLE_DEVICES, or ") +
                  kOtherDevice);
}

std::string device_model(const at::Device& device) {
  return device.is_cuda() ? cuda::model(device) : processor_model();
}

std::uint64_t device_memory_bytes(const at::Device& device) {
  return device.is_cuda() ? cuda::memory_bytes(device) : machine::usable_memory_bytes();
}

}  // namespace hedgerow::worker
