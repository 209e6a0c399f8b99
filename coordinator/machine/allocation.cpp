#include "coordinator/machine/allocation.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace hedgerow::machine {
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

std::vector<std::string> variables_with(const std::function<bool(std::string_view name)>& fits) {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (fits(name)) names.emplace_back(name);
  }
  return names;
}

std::vector<std::string> variables_of_other_jobs(bool in_allocation) {
  constexpr auto begins = [](std::string_view name, const auto& prefixes) {
    return std::any_of(std::begin(prefixes), std::end(prefixes), [&](const char* prefix) {
      return name.starts_with(prefix);
    });
  };
  // Settings of Open MPI (OMPI_MCA_btl and the like) are the user's; these a launcher sets.
  static constexpr const char* kRanks[] = {"OMPI_COMM_WORLD_",
                                           "OMPI_UNIVERSE_SIZE",
                                           "OMPI_APP_CTX",
                                           "OMPI_FIRST_RANKS",
                                           "OMPI_MCA_ess",
                                           "OMPI_MCA_orte_",
                                           "OMPI_MCA_pmix",
                                           "OMPI_MCA_initial_wdir",
                                           "PMIX_",
                                           "PMI_",
                                           "PRTE_"};
  static constexpr const char* kSlurm[] = {"SLURM_"};
  static constexpr const char* kOthers[] = {"PBS_", "LSB_", "PE_HOSTFILE", "SGE_"};
  const std::optional<Allocation> slurm = own_allocation();
  const char* const pbs_nodes = std::getenv("PBS_NODEFILE");  // gone with its job
  const bool has_slurm = in_allocation || (slurm && slurm->nodes > 1);
  const bool has_other = in_allocation || (pbs_nodes != nullptr && ::access(pbs_nodes, R_OK) == 0);
  return variables_with([&](std::string_view name) {
    return begins(name, kRanks) || (!has_slurm && begins(name, kSlurm)) ||
           (!has_other && begins(name, kOthers));
  });
}

}  // namespace hedgerow::machine
