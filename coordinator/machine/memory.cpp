#include "coordinator/machine/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace hedgerow::machine {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// A number, or "max", or no such file.
std::uint64_t limit_in(const fs::path& file) {
  std::ifstream in(file);
  std::uint64_t bytes = kNoLimit;
  return in >> bytes ? bytes : kNoLimit;
}

// A group's own limit and those of all above it.
std::uint64_t limit_along(const fs::path& mount, fs::path group, const char* file) {
  std::uint64_t smallest = limit_in(mount / file);
  for (group = group.relative_path(); !group.empty(); group = group.parent_path())
    smallest = std::min(smallest, limit_in(mount / group / file));
  return smallest;
}

}  // namespace

std::uint64_t cgroup_memory_limit(const std::string& groups, const fs::path& mount) {
  std::uint64_t smallest = kNoLimit;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      smallest = std::min(smallest, limit_along(mount, group, "memory.max"));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      smallest = std::min(smallest, limit_along(mount / "memory", group, "memory.limit_in_bytes"));
    }
  }
  return smallest;
}

std::uint64_t usable_memory_bytes() {
  const auto physical = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
  std::ostringstream groups;
  groups << std::ifstream("/proc/self/cgroup").rdbuf();
  return std::min(physical, cgroup_memory_limit(groups.str(), "/sys/fs/cgroup"));
}

ResidentMemory resident_memory() {
  ResidentMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "VmRSS:" && status >> kib) memory.now = kib << 10U;
    if (word == "VmHWM:" && status >> kib) memory.peak = kib << 10U;
  }
  return memory;
}

void reset_resident_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

}  // namespace hedgerow::machine
