// What `hedgerow doctor` looks at: each check measures one thing of this machine or directory and
// says how to mend it. A check never throws: what it cannot find out is a warning or a failure with
// the reason.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/terminal.hpp"

namespace hedgerow::coordinator::cli {

enum class Level { kOk, kWarn, kFail };

struct Finding {
  std::string check;  // "fsync"
  Level level = Level::kOk;
  std::string found;  // "0.4 ms"
  std::string fix;    // empty when ok
};

// The directory where a run will lie: rename, fsync, write speed, locks, free space, clock.
[[nodiscard]] std::vector<Finding> examine_directory(const std::filesystem::path& directory,
                                                     std::optional<std::uint64_t> needed_bytes);
// The programs: hedgerow-worker with LibTorch, Python with its packages, mpirun with two ranks.
[[nodiscard]] std::vector<Finding> examine_programs(Terminal& terminal);
// The machine: cores, memory, matrix units, descriptor limit, GPU and driver.
[[nodiscard]] std::vector<Finding> examine_machine();

}  // namespace hedgerow::coordinator::cli
