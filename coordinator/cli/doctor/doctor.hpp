// What `hedgerow doctor` looks at: each check measures one thing of this machine or directory and
// says how to mend it. A check never throws: what it cannot find out is a warning or a failure with
// the reason. What the checks read of the machine comes in as a value (MachineFacts,
// NetworkFacts), so that a test shows them a machine that it does not have.
#pragma once

#include <sys/resource.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/terminal/terminal.hpp"

namespace hedgerow::coordinator::cli {

inline constexpr double kSkewSeconds = 2.0;  // between two clocks: more is a warning

enum class Level { kOk, kWarn, kFail };

struct Finding {
  std::string check;  // "fsync"
  Level level = Level::kOk;
  std::string found;  // "0.4 ms"
  std::string fix;    // empty when ok
};

struct MachineFacts {
  std::filesystem::path root = "/";  // of /proc, /sys and /dev
  std::function<std::optional<std::string>(const std::string&)> variable;
  std::function<rlimit(int resource)> limit;
  int num_cores = 1;        // that this process may use
  bool has_cuda = false;    // of this build
  int cuda_driver_api = 0;  // what libcuda.so.1 offers: 13000 is CUDA 13.0; 0: it is not there
};
[[nodiscard]] MachineFacts facts_of_this_machine(const Console& console);

// Memory, cores and the container's limits on them, matrix units, shared memory.
[[nodiscard]] std::vector<Finding> examine_machine(const MachineFacts& facts);
// What setrlimit and the container's group hold this process to.
[[nodiscard]] std::vector<Finding> examine_limits(const MachineFacts& facts);
// GPUs and their driver, against what this build needs.
[[nodiscard]] std::vector<Finding> examine_gpus(const MachineFacts& facts);
// `probe` is what `hedgerow-worker probe` answers.
[[nodiscard]] Finding judge_nccl(const nlohmann::json& probe);
[[nodiscard]] Finding judge_mpi_library(const nlohmann::json& probe);

// The directory where a run will lie: rename, fsync, write speed, locks, free space, clock.
[[nodiscard]] std::vector<Finding> examine_directory(const std::filesystem::path& directory,
                                                     const MachineFacts& facts,
                                                     std::optional<std::uint64_t> needed_bytes);

struct NetworkFacts {
  std::string bind = "127.0.0.1";  // workers.bind
  std::string host;                // workers.advertise, or this host's name
  int port = 0;                    // a port that must be free; 0: any
  // Numeric addresses of a name; none if it has none.
  std::function<std::vector<std::string>(const std::string& name)> addresses_of;
};
[[nodiscard]] NetworkFacts network_of_this_machine();
// libzmq, listening and connecting on loopback and on the address that workers would be told.
[[nodiscard]] std::vector<Finding> examine_network(const NetworkFacts& facts);

// The keys of the run in `directory`, as each side would read them, against what is bound.
[[nodiscard]] Finding examine_keys(const std::filesystem::path& directory, const std::string& bind);

// The programs: hedgerow-worker with its libraries, Python with its packages, our scripts.
[[nodiscard]] std::vector<Finding> examine_programs(Terminal& terminal);
// Starts two ranks with mpirun, and inside a Slurm allocation with srun too; one of them must work.
[[nodiscard]] std::vector<Finding> examine_mpi_launch(Terminal& terminal);
// What the two launchers came to: ok where it works, else what to use in its place.
[[nodiscard]] std::vector<Finding> weigh_launchers(Finding mpirun, std::optional<Finding> srun);
// One launcher's answer: the JSON lines of `hedgerow-worker mpi-probe`.
[[nodiscard]] Finding judge_ranks(const std::string& check, const std::vector<std::string>& lines);

// Of the JSON reports of several doctors: the worst finding of each check.
[[nodiscard]] std::vector<Finding> worst_of_each(const std::vector<std::string>& reports);
// Inside a Slurm allocation of several nodes: starts `hedgerow doctor --peers` on each of them, and
// gives the worst that they found of each check. Elsewhere nothing.
[[nodiscard]] std::vector<Finding> examine_nodes(Terminal& terminal,
                                                 const std::filesystem::path& directory);

}  // namespace hedgerow::coordinator::cli
