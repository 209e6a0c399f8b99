// The nodes that a batch system gave to this process, as its environment tells: how many tasks
// share a node, and how many processors each of them has. Slurm is the one that is known.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hedgerow::machine {

struct Allocation {
  int nodes = 1;
  int tasks_per_node = 1;
  int cpus_per_task = 0;  // 0: it was not asked for
  // Threads of a process that is one of the tasks, on a node with so many cores.
  [[nodiscard]] int threads_per_task(int cores) const;
};

// nullopt: this process is in no job.
[[nodiscard]] std::optional<Allocation> own_allocation();
// The same of any environment: the value of a variable, or nullptr.
[[nodiscard]] std::optional<Allocation> allocation_of(
    const std::function<const char*(const char* name)>& variable);

// The names in this process's environment that `fits`, in its order.
[[nodiscard]] std::vector<std::string> variables_with(
    const std::function<bool(std::string_view name)>& fits);

// Variables by which mpirun would take a job of a batch system or the ranks of another mpirun for
// its own, and that it must not see: those of other ranks always; those of Slurm, PBS, LSF and Grid
// Engine unless `in_allocation`, as far as no job of several nodes stands behind them.
[[nodiscard]] std::vector<std::string> variables_of_other_jobs(bool in_allocation);

}  // namespace hedgerow::machine
