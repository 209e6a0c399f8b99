// Small readings of /proc and /sys that several checks of doctor share.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hedgerow::coordinator::cli {

// The whole of a small file; empty if it cannot be read.
[[nodiscard]] std::string file_text(const std::filesystem::path& path);
// Below `root`, where this process's control group of `controller` ("cpu", "pids") and all above it
// lie, of either version.
[[nodiscard]] std::vector<std::filesystem::path> cgroup_directories(
    const std::filesystem::path& root, const std::string& controller);

}  // namespace hedgerow::coordinator::cli
