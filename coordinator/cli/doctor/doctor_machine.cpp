#include <dlfcn.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/doctor/doctor_files.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/machine/memory.hpp"
#include "coordinator/machine/processor.hpp"
#include "storage/base/build_info.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSharedMemory = 64U << 20U;  // Open MPI's ranks on one node talk through it
// The smallest worker: LibTorch, one layer of a small model and its activations.
constexpr std::uint64_t kLeastMemory = 1ULL << 30U;

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

std::uint64_t physical_memory(const fs::path& root) {
  std::ifstream meminfo(root / "proc/meminfo");
  for (std::string word; meminfo >> word;) {
    std::uint64_t kib = 0;
    if (word == "MemTotal:" && meminfo >> kib) return kib << 10U;
  }
  return 0;
}

Finding check_memory(const MachineFacts& facts) {
  const std::uint64_t physical = physical_memory(facts.root);
  const std::uint64_t limit = wire::cgroup_memory_limit(file_text(facts.root / "proc/self/cgroup"),
                                                        facts.root / "sys/fs/cgroup");
  const std::uint64_t usable = std::min(physical, limit);
  const std::string found =
      bytes_text(usable) +
      (limit < physical
           ? ", the limit of this container or job; the machine has " + bytes_text(physical)
           : "");
  if (usable >= kLeastMemory) return {"memory", Level::kOk, found, ""};
  return {"memory",
          Level::kWarn,
          found,
          "a worker needs at least " + bytes_text(kLeastMemory) + ": give the job more memory"};
}

// The fewest cores that the cgroup's quota along the way up leaves; infinity: no quota.
double quota_cores(const fs::path& root) {
  double fewest = std::numeric_limits<double>::infinity();
  for (const fs::path& group : cgroup_directories(root, "cpu")) {
    std::istringstream both(file_text(group / "cpu.max"));
    double quota = 0, period = 0;
    if (both >> quota >> period && period > 0) fewest = std::min(fewest, quota / period);
    const double old_quota = std::atof(file_text(group / "cpu.cfs_quota_us").c_str());
    const double old_period = std::atof(file_text(group / "cpu.cfs_period_us").c_str());
    if (old_quota > 0 && old_period > 0) fewest = std::min(fewest, old_quota / old_period);
  }
  return fewest;
}

Finding check_cores(const MachineFacts& facts) {
  const double quota = quota_cores(facts.root);
  const std::string cores = std::to_string(facts.num_cores);
  if (quota >= facts.num_cores) return {"cores", Level::kOk, cores, ""};
  return {"cores",
          Level::kWarn,
          cores + " are seen, but this container's quota is " + number_text(quota),
          "set workers.threads and finetune.threads to what the quota allows: threads beyond it "
          "wait for each other"};
}

Finding check_container(const MachineFacts& facts) {
  const auto is_set = [&facts](const char* name) {
    const auto value = facts.variable(name);
    return value && !value->empty();
  };
  const auto exists = [&facts](const char* path) {
    std::error_code ignored;
    return fs::exists(facts.root / path, ignored);
  };
  std::string kind;
  if (is_set("APPTAINER_CONTAINER") || is_set("SINGULARITY_CONTAINER")) {
    kind = "an Apptainer container";
  } else if (is_set("KUBERNETES_SERVICE_HOST")) {
    kind = "a Kubernetes pod";
  } else if (exists("run/.containerenv")) {
    kind = "a Podman container";
  } else if (exists(".dockerenv")) {
    kind = "a Docker container";
  } else if (is_set("container")) {
    kind = "a container (" + *facts.variable("container") + ")";
  }
  const std::string job =
      is_set("SLURM_JOB_ID") ? ", in Slurm's job " + *facts.variable("SLURM_JOB_ID") : "";
  return {"container or host", Level::kOk, (kind.empty() ? "the host itself" : kind) + job, ""};
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

Finding check_shared_memory(const MachineFacts& facts) {
  struct statvfs status {};
  if (statvfs((facts.root / "dev/shm").c_str(), &status) != 0) {
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

}  // namespace

MachineFacts facts_of_this_machine(const Console& console) {
  return {.variable = [&console](const std::string& name) { return console.environment(name); },
          .limit =
              [](int resource) {
                rlimit limit{};
                ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
                return limit;
              },
          .num_cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency())),
          .has_cuda = storage::has_cuda(),
          .cuda_driver_api = loaded_cuda_driver_api()};
}

std::vector<Finding> examine_machine(const MachineFacts& facts) {
  return {check_container(facts),
          check_memory(facts),
          check_cores(facts),
          check_matrix_units(),
          check_shared_memory(facts)};
}

}  // namespace hedgerow::coordinator::cli
