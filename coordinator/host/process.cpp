#include "coordinator/host/process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Signals as a fresh program expects them, whatever the coordinator blocks or ignores.
void reset_signals(posix_spawnattr_t& attributes, std::optional<int> blocked) {
  sigset_t mask;
  sigemptyset(&mask);
  if (blocked) sigaddset(&mask, *blocked);
  posix_spawnattr_setsigmask(&attributes, &mask);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1}) sigaddset(&defaults, number);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
}

class HostProcesses final : public Processes {
 public:
  [[nodiscard]] wire::ProcessId self() const override { return wire::this_process(); }
  [[nodiscard]] bool is_alive(const wire::ProcessId& id) const override {
    return wire::is_alive(id);
  }
  [[nodiscard]] wire::ProcessId start(const std::vector<std::string>& argv,
                                      const std::filesystem::path& log,
                                      std::optional<int> blocked) override;
  [[nodiscard]] std::optional<ProcessExit> reap(const wire::ProcessId& child) override;
  void signal_group(const wire::ProcessId& leader, int number) override {
    ::kill(-leader.pid, number);
  }
};

wire::ProcessId HostProcesses::start(const std::vector<std::string>& argv,
                                     const std::filesystem::path& log,
                                     std::optional<int> blocked) {
  if (std::error_code none; std::filesystem::is_symlink(log, none)) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         "the log " + log.string() +
                             " is a symbolic link, and what it leads to is not ours to write; "
                             "remove it");
  }
  std::vector<std::string> arguments = argv;
  std::vector<char*> argument_pointers = pointers(arguments);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(
      &files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0644);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  reset_signals(attributes, blocked);
  pid_t pid = 0;
  const int error_number = ::posix_spawnp(
      &pid, arguments.front().c_str(), &files, &attributes, argument_pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error_number != 0) throw storage::system_error("start", arguments.front(), error_number);
  const std::optional<wire::ProcessId> id = wire::process_with(pid);
  return id.value_or(wire::ProcessId{pid, 0});
}

std::optional<ProcessExit> HostProcesses::reap(const wire::ProcessId& child) {
  int status = 0;
  const pid_t ended = ::waitpid(child.pid, &status, WNOHANG);
  if (ended == 0) return std::nullopt;
  ProcessExit result;
  if (ended < 0) {
    result.known = false;
  } else if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
  } else {
    result.code = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace

std::string ProcessExit::text() const {
  if (!known) return "ended";
  if (signal != 0)
    return "was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  return "exited with code " + std::to_string(code);
}

Processes& host_processes() {
  static HostProcesses processes;
  return processes;
}

ChildProcess ChildProcess::start(const std::vector<std::string>& argv,
                                 const std::filesystem::path& log,
                                 Processes& processes,
                                 std::optional<int> blocked) {
  return {processes.start(argv, log, blocked), true, processes};
}

ChildProcess ChildProcess::adopt(const wire::ProcessId& id, Processes& processes) {
  return {id, false, processes};
}

std::optional<ProcessExit> ChildProcess::poll() {
  if (exit_) return exit_;
  if (ours_) {
    exit_ = processes_->reap(id_);
  } else if (!processes_->is_alive(id_)) {
    exit_ = ProcessExit{.code = 0, .signal = 0, .known = false};
  }
  return exit_;
}

void ChildProcess::signal(int number) const {
  if (exit_) return;
  // A recycled pid must not be hit; ours cannot be recycled before we reap it.
  if (!ours_ && !processes_->is_alive(id_)) return;
  processes_->signal_group(id_, number);
}

}  // namespace hedgerow::coordinator
