// What `hedgerow doctor` looks at: a table of checks, each of which measures one thing of this
// machine or directory and says how to mend it. What goes wrong inside a check is a failure with
// the reason. What the checks read of the machine comes in as a value (MachineFacts,
// NetworkFacts), so that a test shows them a machine that it does not have.
#pragma once

#include <sys/resource.h>

#include <chrono>
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

struct Outcome {
  Level level = Level::kOk;
  std::string found;
  std::string fix = {};  // in place of the check's own
};
struct Check {
  std::string name, fix;
  std::function<Outcome()> look;
};
// Never throws: an exception of a check is its failure.
[[nodiscard]] std::vector<Finding> run_checks(const std::vector<Check>& checks);

struct MachineFacts {
  std::filesystem::path root = "/";  // of /proc, /sys and /dev
  std::function<std::optional<std::string>(const std::string&)> variable;
  std::function<rlimit(int resource)> limit;
  std::uint64_t memory_bytes = 0;  // that this process may use
  bool has_cuda = false;           // of this build
  int cuda_driver_api = 0;  // what libcuda.so.1 offers: 13000 is CUDA 13.0; 0: it is not there
};
[[nodiscard]] MachineFacts facts_of_this_machine(const Console& console);

// Memory, shared memory, matrix units, limits of the user, Slurm; GPUs and their driver against
// what this build needs.
[[nodiscard]] std::vector<Finding> examine_machine(const MachineFacts& facts);

// The directory where a run will lie: rename, fsync, locks, free space, clock.
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
// libzmq, listening and connecting where workers would, and the keys of the run in `directory`.
[[nodiscard]] std::vector<Finding> examine_network(const NetworkFacts& facts,
                                                   const std::filesystem::path& directory);

// The programs: hedgerow-worker with its libraries, Python with its packages, our scripts.
[[nodiscard]] std::vector<Finding> examine_programs(Terminal& terminal);
// `probe` is what `hedgerow-worker probe` answers.
[[nodiscard]] Outcome judge_nccl(const nlohmann::json& probe);
[[nodiscard]] Outcome judge_mpi_library(const nlohmann::json& probe);

// Starts two ranks with mpirun, and inside a Slurm allocation with srun too; one of them must work.
[[nodiscard]] std::vector<Finding> examine_mpi_launch(Terminal& terminal);
// What the two launchers came to: ok where it works, else what to use in its place.
[[nodiscard]] std::vector<Finding> weigh_launchers(Finding mpirun, std::optional<Finding> srun);
// One launcher's answer: the JSON lines of `hedgerow-worker mpi-probe`.
[[nodiscard]] Outcome judge_ranks(const std::vector<std::string>& lines);

// Inside a Slurm allocation of several nodes: starts `hedgerow doctor --peers` on each of them, and
// gives the worst that they found of each check. Elsewhere nothing.
[[nodiscard]] std::vector<Finding> examine_nodes(Terminal& terminal,
                                                 const std::filesystem::path& directory);
// The worst finding of each check, from the JSON reports of several doctors.
[[nodiscard]] std::vector<Finding> worst_of_each(const std::vector<std::string>& reports);

struct PeerOptions {
  int num_processes = 2;  // this one included
  // Attribute caches of network file systems show a file late; readers of a run wait as long.
  std::chrono::milliseconds timeout = std::chrono::seconds(90);
  std::chrono::milliseconds look_every = std::chrono::milliseconds(50);
  std::string host;     // of this process, in what it says
  std::string address;  // where the others are to reach it; empty: that is not tried
};
// What only several nodes together can find out: does a file that one writes show on the others, do
// their clocks agree, do they reach each other. One process a node runs this at the same time in
// the directory that they share; they meet through files there. Blocks until all have met, or
// timeout is over. Leaves nothing in the directory.
[[nodiscard]] std::vector<Finding> meet_peers(const std::filesystem::path& directory,
                                              const PeerOptions& options);

}  // namespace hedgerow::coordinator::cli
