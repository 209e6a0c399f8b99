#include <algorithm>
#include <cctype>
#include <fstream>
#include <limits>
#include <sstream>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/doctor/doctor_files.hpp"
#include "coordinator/cli/terminal/format.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

// Sockets, logs and open shards of a coordinator with hundreds of workers.
constexpr rlim_t kWantedDescriptors = 1024;
constexpr rlim_t kWantedStack = 1U << 20U;  // a thread's too
// Each worker has a thread a core and some of its libraries' own.
constexpr rlim_t kWantedThreads = 512;

std::string count_text(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : std::to_string(value);
}

std::string size_text(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : bytes_text(value);
}

// How to raise a limit: the shell's word if the hard limit has room, else who set that.
std::string raise(const char* option, rlim_t wanted, rlim_t hard, const char* unit_key) {
  const std::string value = wanted == RLIM_INFINITY ? "unlimited" : std::to_string(wanted);
  if (hard >= wanted) return std::string("ulimit -") + option + " " + value;
  return std::string("its hard limit is ") + count_text(hard) + ": raise it in " +
         "/etc/security/limits.conf, by " + unit_key +
         "= of a systemd unit, or where the "
         "container is started";
}

Finding check_descriptors(const MachineFacts& facts) {
  const rlimit limit = facts.limit(RLIMIT_NOFILE);
  if (limit.rlim_cur >= kWantedDescriptors)
    return {"open files", Level::kOk, count_text(limit.rlim_cur), ""};
  return {"open files",
          Level::kWarn,
          count_text(limit.rlim_cur),
          raise("n", kWantedDescriptors, limit.rlim_max, "LimitNOFILE")};
}

// Only what registers memory with a card needs it locked.
Finding check_locked_memory(const MachineFacts& facts) {
  const rlimit limit = facts.limit(RLIMIT_MEMLOCK);
  std::error_code none;
  const fs::directory_iterator adapters(facts.root / "sys/class/infiniband", none);
  const bool has_fabric = !none && adapters != fs::directory_iterator();
  if (!has_fabric || limit.rlim_cur == RLIM_INFINITY)
    return {"locked memory", Level::kOk, size_text(limit.rlim_cur), ""};
  return {"locked memory",
          Level::kWarn,
          size_text(limit.rlim_cur) + ", and this machine has InfiniBand",
          "MPI and NCCL register their buffers; " +
              raise("l", RLIM_INFINITY, limit.rlim_max, "LimitMEMLOCK")};
}

Finding check_stack(const MachineFacts& facts) {
  const rlimit limit = facts.limit(RLIMIT_STACK);
  if (limit.rlim_cur >= kWantedStack) return {"stack", Level::kOk, size_text(limit.rlim_cur), ""};
  return {"stack",
          Level::kWarn,
          size_text(limit.rlim_cur),
          "every thread gets as much: ulimit -s 8192"};
}

// Fewest of the limits of the user and of the groups along the way up.
Finding check_processes(const MachineFacts& facts) {
  rlim_t most = facts.limit(RLIMIT_NPROC).rlim_cur;
  bool is_group = false;
  for (const fs::path& group : cgroup_directories(facts.root, "pids")) {
    std::istringstream text(file_text(group / "pids.max"));
    rlim_t count = 0;
    if (!(text >> count) || count >= most) continue;
    most = count;
    is_group = true;
  }
  const std::string found =
      count_text(most) + (is_group ? ", the limit of this container or job" : "");
  if (most >= kWantedThreads) return {"processes", Level::kOk, found, ""};
  return {
      "processes",
      Level::kWarn,
      found,
      "threads count too: " + (is_group ? std::string("raise pids.max (--pids-limit, TasksMax=)")
                                        : "ulimit -u " + std::to_string(kWantedThreads))};
}

Finding check_address_space(const MachineFacts& facts) {
  const rlimit limit = facts.limit(RLIMIT_AS);
  if (limit.rlim_cur == RLIM_INFINITY) return {"address space", Level::kOk, "unlimited", ""};
  return {"address space",
          facts.has_cuda ? Level::kFail : Level::kWarn,
          size_text(limit.rlim_cur),
          "LibTorch and CUDA reserve far more than they use: " +
              raise("v", RLIM_INFINITY, limit.rlim_max, "LimitAS")};
}

Finding check_core_files(const MachineFacts& facts) {
  const rlimit limit = facts.limit(RLIMIT_CORE);
  const std::string pattern = file_text(facts.root / "proc/sys/kernel/core_pattern");
  // A pattern that begins with a bar hands them to a program, which decides.
  if (limit.rlim_cur == 0 || pattern.starts_with("|"))
    return {
        "core files", Level::kOk, limit.rlim_cur == 0 ? "none are written" : "go to a program", ""};
  return {"core files",
          Level::kWarn,
          size_text(limit.rlim_cur) + " each, as \"" +
              one_line(pattern.substr(0, pattern.find('\n'))) + "\"",
          "a worker that crashes writes its whole memory to the disk: ulimit -c 0"};
}

}  // namespace

std::string file_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<fs::path> cgroup_directories(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> directories;
  const fs::path mount = root / "sys/fs/cgroup";
  std::istringstream groups(file_text(root / "proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_ours =
        ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
    if (!controllers.empty() && !is_ours) continue;
    const fs::path base = controllers.empty() ? mount : mount / controllers;
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (; !group.empty(); group = group.parent_path()) directories.push_back(base / group);
    directories.push_back(base);
  }
  return directories;
}

std::vector<Finding> examine_limits(const MachineFacts& facts) {
  return {check_descriptors(facts),
          check_locked_memory(facts),
          check_stack(facts),
          check_processes(facts),
          check_address_space(facts),
          check_core_files(facts)};
}

}  // namespace hedgerow::coordinator::cli
