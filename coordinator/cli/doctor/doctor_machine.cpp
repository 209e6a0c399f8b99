#include <dlfcn.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/machine/gpus.hpp"
#include "coordinator/machine/memory.hpp"
#include "coordinator/machine/processor.hpp"
#include "storage/base/build_info.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSharedMemory = 64U << 20U;  // Open MPI's ranks on one node talk through it
// The smallest worker: LibTorch, one layer of a small model and its activations.
constexpr std::uint64_t kLeastMemory = 1ULL << 30U;
// Sockets, logs and open shards of a coordinator with hundreds of workers.
constexpr rlim_t kWantedDescriptors = 1024;
// Each worker has a thread a core and some of its libraries' own.
constexpr rlim_t kWantedThreads = 512;
// CUDA 13.0, which LibTorch and this build are made with.
constexpr int kNeededCuda = 13000;

// What the driver's library offers, which a compatibility package may raise above the driver's own.
int loaded_cuda_driver_api() {
  void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return 0;
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) version = 0;
  ::dlclose(library);
  return version;
}

Outcome look_at_shared_memory(const MachineFacts& facts) {
  struct statvfs status {};
  if (statvfs((facts.root / "dev/shm").c_str(), &status) != 0) return {Level::kWarn, "no /dev/shm"};
  const std::uint64_t free = status.f_bavail * status.f_frsize;
  return {free >= kSharedMemory ? Level::kOk : Level::kWarn, bytes_text(free) + " free"};
}

Outcome look_at_matrix_units() {
  const auto units = machine::matrix_units();
  const char* const name = units == machine::MatrixUnits::kAmx            ? "AMX"
                           : units == machine::MatrixUnits::kAvx512Bfloat ? "AVX512_BF16 of AMD"
                           : units == machine::MatrixUnits::kAvx512       ? "AVX-512 without AMX"
                                                                          : "no AVX-512";
  return {units == machine::MatrixUnits::kNone ? Level::kWarn : Level::kOk,
          std::string(name) + ": plan.compute_dtype = \"auto\" takes " +
              (machine::multiplies_bfloat16_faster(units) ? "bf16" : "fp32")};
}

// `is_bytes`: else a count.
Outcome look_at_limit(const MachineFacts& facts, int resource, rlim_t wanted, bool is_bytes) {
  const rlim_t limit = facts.limit(resource).rlim_cur;
  return {limit >= wanted ? Level::kOk : Level::kWarn,
          limit == RLIM_INFINITY ? "unlimited"
          : is_bytes             ? bytes_text(limit)
                                 : std::to_string(limit)};
}

// Only what registers memory with a card needs it locked.
Outcome look_at_locked_memory(const MachineFacts& facts) {
  Outcome outcome = look_at_limit(facts, RLIMIT_MEMLOCK, RLIM_INFINITY, true);
  std::error_code none;
  const fs::directory_iterator adapters(facts.root / "sys/class/infiniband", none);
  if (none || adapters == fs::directory_iterator()) outcome.level = Level::kOk;
  return outcome;
}

Outcome look_at_slurm(const MachineFacts& facts) {
  const auto job = facts.variable("SLURM_JOB_ID");
  if (!job) return {Level::kOk, "not inside a job"};
  return {
      Level::kOk,
      "job " + one_line(*job) + ", nodes: " + facts.variable("SLURM_JOB_NUM_NODES").value_or("1")};
}

// Of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ..." the number;
// empty: the file does not tell.
std::string driver_version(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::smatch found;
  static const std::regex kNumber(R"(\s(\d+\.\d+(\.\d+)?)\s)");
  if (!std::getline(stream, line) || !std::regex_search(line, found, kNumber)) return "";
  return found[1];
}

Outcome look_at_gpus(const MachineFacts& facts) {
  const bool has_driver = fs::exists(facts.root / "proc/driver/nvidia/version");
  const auto visible = facts.variable("CUDA_VISIBLE_DEVICES");
  const int num_devices =
      machine::num_visible_gpus(facts.root / "dev", visible ? visible->c_str() : nullptr);
  if (num_devices == 0 && !has_driver) return {Level::kOk, "none: runs on the CPU"};
  if (num_devices == 0 && visible) {
    return {Level::kWarn,
            "CUDA_VISIBLE_DEVICES=\"" + one_line(*visible) + "\" hides all",
            "ask the scheduler for GPUs, or unset it"};
  }
  if (num_devices == 0) return {Level::kWarn, "a driver without devices"};
  const std::string version = driver_version(facts.root / "proc/driver/nvidia/version");
  const std::string driver = version.empty() ? "" : " " + version;
  const std::string found = std::to_string(num_devices) + " device(s)";
  const int api = facts.cuda_driver_api;
  const Level bad = facts.has_cuda ? Level::kFail : Level::kWarn;
  if (api == 0) {
    return {bad, found + ", and libcuda.so.1 of the driver" + driver + " cannot be loaded"};
  }
  const std::string offers = found + ", the driver" + driver + " offers CUDA " +
                             std::to_string(api / 1000) + "." + std::to_string(api % 1000 / 10);
  if (api < kNeededCuda) {
    return {bad,
            offers + "; 13.0 is needed",
            "install driver 580 or newer, or the package cuda-compat-13-0 on a data center's card"};
  }
  if (facts.has_cuda) return {Level::kOk, offers};
  return {Level::kWarn,
          offers + ", but this build has no CUDA and computes on the CPU",
          "deploy/setup --cuda && cmake --preset cuda && cmake --build --preset cuda"};
}

}  // namespace

std::vector<Finding> run_checks(const std::vector<Check>& checks) {
  std::vector<Finding> findings;
  for (const Check& check : checks) {
    Outcome outcome;
    try {
      outcome = check.look();
    } catch (const std::exception& error) {
      outcome = {Level::kFail, error.what()};
    }
    if (outcome.fix.empty()) outcome.fix = check.fix;
    if (outcome.level == Level::kOk) outcome.fix.clear();
    findings.push_back({check.name, outcome.level, outcome.found, outcome.fix});
  }
  return findings;
}

MachineFacts facts_of_this_machine(const Console& console) {
  return {.variable = [&console](const std::string& name) { return console.environment(name); },
          .limit =
              [](int resource) {
                rlimit limit{};
                ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
                return limit;
              },
          .memory_bytes = machine::usable_memory_bytes(),
          .has_cuda = storage::has_cuda(),
          .cuda_driver_api = loaded_cuda_driver_api()};
}

std::vector<Finding> examine_machine(const MachineFacts& facts) {
  return run_checks({
      {"memory",
       "a worker needs at least " + bytes_text(kLeastMemory) + ": give the job more memory",
       [&]() -> Outcome {
         return {facts.memory_bytes >= kLeastMemory ? Level::kOk : Level::kWarn,
                 bytes_text(facts.memory_bytes)};
       }},
      {"matrix units",
       "a processor with AMX, or a recent one of AMD, is several times faster",
       look_at_matrix_units},
      {"shared memory",
       "ranks on one node talk through /dev/shm; give the container more (--shm-size=1g)",
       [&] { return look_at_shared_memory(facts); }},
      {"open files",
       "ulimit -n 1024; the hard limit is in limits.conf or the unit's LimitNOFILE=",
       [&] { return look_at_limit(facts, RLIMIT_NOFILE, kWantedDescriptors, false); }},
      {"processes",
       "threads count too: ulimit -u 512",
       [&] { return look_at_limit(facts, RLIMIT_NPROC, kWantedThreads, false); }},
      {"address space",
       "LibTorch and CUDA reserve far more than they use: ulimit -v unlimited",
       [&] { return look_at_limit(facts, RLIMIT_AS, RLIM_INFINITY, true); }},
      {"locked memory",
       "MPI and NCCL register their buffers with InfiniBand: ulimit -l unlimited",
       [&] { return look_at_locked_memory(facts); }},
      {"GPU",
       "start the container with its GPUs and the driver's libraries (--gpus all, --nv), or reload "
       "the driver",
       [&] { return look_at_gpus(facts); }},
      {"Slurm", "", [&] { return look_at_slurm(facts); }},
  });
}

}  // namespace hedgerow::coordinator::cli
