// How much memory this process may use: what plans, workers and doctor count with. The machine's,
// or less where a container or a batch system limits it (cgroup v1 and v2): past that the kernel
// kills.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace hedgerow::machine {

[[nodiscard]] std::uint64_t usable_memory_bytes();

// Resident bytes of this process: now, and at most since the last reset (or since its start, where
// the system allows no reset). 0 where it does not tell.
struct ResidentMemory {
  std::uint64_t now = 0, peak = 0;
};
[[nodiscard]] ResidentMemory resident_memory();
void reset_resident_peak();

// The smallest limit on the way from the process's groups up to the root; UINT64_MAX: none.
// `groups` is the text of /proc/self/cgroup, `mount` stands for /sys/fs/cgroup.
[[nodiscard]] std::uint64_t cgroup_memory_limit(const std::string& groups,
                                                const std::filesystem::path& mount);

}  // namespace hedgerow::machine
