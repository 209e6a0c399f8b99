#include "coordinator/host/process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

// Between fork and exec: only async-signal-safe calls, because another thread may have held a lock
// when the process was copied. Returns only if the program cannot be started.
void execute(const SpawnOptions& options, char* const* arguments, pid_t parent) {
  if (options.outlives_us) {
    setsid();
  } else {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
  }
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1}) ::signal(number, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  if (options.blocked) sigaddset(&mask, *options.blocked);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  dup2(options.in >= 0 ? options.in : ::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  dup2(options.out, STDOUT_FILENO);
  dup2(options.err, STDERR_FILENO);
  execvp(arguments[0], arguments);
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
  // Not a FIFO: one without a reader would hold us for ever.
  const storage::File output = storage::File::open_append(log);
  const int out = output.descriptor();
  const pid_t pid =
      spawn({.argv = argv, .out = out, .err = out, .outlives_us = true, .blocked = blocked});
  return wire::process_with(pid).value_or(wire::ProcessId{pid, 0});
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

pid_t spawn(const SpawnOptions& options) {
  const std::vector<char*> arguments = pointers(options.argv);
  std::array<int, 2> failure{};  // exec closes it, or its errno comes through
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) throw storage::system_error("open", "a pipe", errno);
  const pid_t parent = ::getpid();
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // until the child is rid of our handlers
  const pid_t pid = ::fork();
  if (pid == 0) {
    execute(options, arguments.data(), parent);
    const int reason = errno;
    [[maybe_unused]] const ssize_t written = ::write(failure[1], &reason, sizeof reason);
    ::_exit(127);
  }
  int reason = pid < 0 ? errno : 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::close(failure[1]);
  while (pid > 0 && ::read(failure[0], &reason, sizeof reason) < 0 && errno == EINTR) {
  }
  ::close(failure[0]);
  if (reason == 0) return pid;
  if (pid > 0) ::waitpid(pid, nullptr, 0);
  throw storage::system_error("start", options.argv[0], reason);
}

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
