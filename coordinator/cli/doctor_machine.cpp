#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "coordinator/cli/child.hpp"
#include "coordinator/cli/doctor.hpp"
#include "coordinator/cli/format.hpp"
#include "coordinator/cli/programs.hpp"
#include "coordinator/wire/gpus.hpp"
#include "coordinator/wire/memory.hpp"
#include "coordinator/wire/processor.hpp"
#include "storage/build_info.hpp"
#include "storage/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

constexpr rlim_t kWantedDescriptors =
    1024;  // sockets, logs and open shards of a coordinator with hundreds of workers
constexpr std::uint64_t kSharedMemory = 64U << 20U;  // Open MPI's ranks on one node talk through it
constexpr const char* kPackages = "import numpy, h5py, tokenizers, safetensors, xxhash";

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Finding check_matrix_units() {
  const auto units = wire::matrix_units();
  const std::string chosen = std::string("plan.compute_dtype = \"auto\" takes ") +
                             (wire::multiplies_bfloat16_faster(units) ? "bf16" : "fp32");
  switch (units) {
    case wire::MatrixUnits::kAmx:
      return {"matrix units", Level::kOk, "AMX: " + chosen, ""};
    case wire::MatrixUnits::kAvx512Bfloat:
      return {"matrix units", Level::kOk, "AVX512_BF16 of AMD: " + chosen, ""};
    case wire::MatrixUnits::kAvx512:
      return {"matrix units", Level::kOk, "AVX-512 without AMX: " + chosen, ""};
    case wire::MatrixUnits::kNone:
      break;
  }
  return {"matrix units",
          Level::kWarn,
          "no AVX-512: " + chosen,
          "a processor with AMX, or a recent one of AMD, is several times faster"};
}

Finding check_memory() {
  return {"memory and cores",
          Level::kOk,
          bytes_text(wire::usable_memory_bytes()) + ", " +
              std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) + " cores",
          ""};
}

Finding check_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
  if (limit.rlim_cur >= kWantedDescriptors) return {"open files", Level::kOk, found, ""};
  return {"open files", Level::kWarn, found, "ulimit -n " + std::to_string(kWantedDescriptors)};
}

Finding check_shared_memory() {
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0) {
    return {"shared memory",
            Level::kWarn,
            "no /dev/shm",
            "Open MPI falls back to slower ways; mount a tmpfs there"};
  }
  const std::uint64_t free = status.f_bavail * status.f_frsize;
  if (free >= kSharedMemory) return {"shared memory", Level::kOk, bytes_text(free) + " free", ""};
  return {"shared memory",
          Level::kWarn,
          bytes_text(free) + " free",
          "ranks on one node talk through /dev/shm; give the container more (--shm-size=1g)"};
}

Finding check_gpu() {
  const std::string driver = first_line("/proc/driver/nvidia/version");
  const int num_devices = wire::num_visible_gpus();
  if (num_devices == 0 && driver.empty()) return {"GPU", Level::kOk, "none: runs on the CPU", ""};
  if (num_devices > 0 && !driver.empty()) {
    const std::string found = std::to_string(num_devices) + " device(s), " + driver;
    if (storage::has_cuda()) return {"GPU", Level::kOk, found, ""};
    return {"GPU",
            Level::kWarn,
            found + ", but this build has no CUDA and computes on the CPU",
            "deploy/setup --cuda && cmake --preset cuda && cmake --build --preset cuda"};
  }
  return {"GPU",
          Level::kWarn,
          driver.empty() ? "devices without a driver" : "a driver without devices",
          "start the container with its GPUs (--gpus all), or reload the driver"};
}

// Runs a probe; a failure becomes a finding of `level`.
Finding probe(Terminal& terminal,
              const std::string& check,
              Level level,
              const std::string& fix,
              const std::function<ChildCommand()>& command,
              const std::function<std::string(const std::string& out)>& judge) {
  try {
    std::string out;
    const ChildResult result = run_child(
        command(), terminal, [&](std::string_view line) { out += std::string(line) + "\n"; });
    if (!result.ok()) return {check, level, child_error(check, result).what(), fix};
    const std::string found = judge(out);
    if (found.empty()) return {check, level, "unexpected answer: " + one_line(out), fix};
    return {check, Level::kOk, found, ""};
  } catch (const storage::Error& error) {
    return {check, level, error.what(), fix};
  }
}

std::string judge_ranks(const std::string& out) {
  const bool both =
      out.find("0 of 2") != std::string::npos && out.find("1 of 2") != std::string::npos;
  return both ? "two ranks started" : "";
}

}  // namespace

std::vector<Finding> examine_programs(Terminal& terminal) {
  const Console& console = terminal.console();
  const auto take_first_line = [](const std::string& out) { return out.substr(0, out.find('\n')); };
  return {
      probe(
          terminal,
          "hedgerow-worker",
          Level::kFail,
          "build it, and run deploy/setup for LibTorch",
          [&] {
            return ChildCommand{.arguments = {worker_binary(console), "--version"}};
          },
          take_first_line),
      probe(
          terminal,
          "Python packages",
          Level::kFail,
          "run deploy/setup",
          [&] {
            return ChildCommand{
                .arguments = {python_interpreter(console),
                              "-c",
                              std::string(kPackages) +
                                  "; print('numpy', numpy.__version__, 'h5py', h5py.__version__)"}};
          },
          take_first_line),
      probe(
          terminal,
          "Python scripts",
          Level::kFail,
          "set HEDGEROW_HUGGINGFACE to deploy/huggingface",
          [&] {
            return ChildCommand{
                .arguments = {"test", "-f", huggingface_directory(console) / "make_tokens.py"}};
          },
          [&](const std::string&) { return huggingface_directory(console).string(); }),
      probe(
          terminal,
          "mpirun, two ranks",
          Level::kFail,
          "install openmpi-bin, or set finetune.ranks = 1 in the recipe",
          [] {
            return ChildCommand{
                .arguments = {"mpirun",
                              "--oversubscribe",
                              "-n",
                              "2",
                              "/bin/sh",
                              "-c",
                              "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"},
                .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}};
          },
          judge_ranks),
  };
}

std::vector<Finding> examine_machine() {
  return {check_memory(),
          check_matrix_units(),
          check_descriptors(),
          check_shared_memory(),
          check_gpu()};
}

}  // namespace hedgerow::coordinator::cli
