#include "coordinator/machine/allocation.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace hedgerow::wire {
namespace {

// The number that the text begins with: "4(x2),1" is 4, of the first node.
int leading_number(const char* text) {
  if (text == nullptr) return 0;
  const std::string_view digits(text);
  int value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return parsed.ec == std::errc() ? value : 0;
}

}  // namespace

int Allocation::threads_per_task(int cores) const {
  return cpus_per_task > 0 ? cpus_per_task : std::max(1, cores / std::max(1, tasks_per_node));
}

std::optional<Allocation> allocation_of(
    const std::function<const char*(const char* name)>& variable) {
  if (variable("SLURM_JOB_ID") == nullptr) return std::nullopt;
  return Allocation{.nodes = std::max(1, leading_number(variable("SLURM_JOB_NUM_NODES"))),
                    .tasks_per_node = std::max(1, leading_number(variable("SLURM_TASKS_PER_NODE"))),
                    .cpus_per_task = leading_number(variable("SLURM_CPUS_PER_TASK"))};
}

std::optional<Allocation> own_allocation() {
  return allocation_of([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace hedgerow::wire
