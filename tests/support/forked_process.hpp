// A part of a test as a process of its own, for what only a process can do: die. It is killed and
// waited for with the object, so that a test which fails leaves none behind. The caller forks
// before it starts threads: the child has only the one that forked.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <system_error>

namespace hedgerow::tests {

class ForkedProcess {
 public:
  // Exit code 0 when `work` returns and 1, with its message on stderr, when it throws.
  explicit ForkedProcess(const std::function<void()>& work) : pid_(::fork()) {
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid_ > 0) return;
    try {
      work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "forked process: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  ~ForkedProcess() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ForkedProcess(const ForkedProcess&) = delete;
  ForkedProcess& operator=(const ForkedProcess&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  // Waits for its end, once; as waitpid says it (WIFSIGNALED, WEXITSTATUS).
  [[nodiscard]] int wait() {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, 0);
    if (ended != pid_) throw std::system_error(errno, std::generic_category(), "waitpid");
    pid_ = -1;
    return status;
  }
  [[nodiscard]] int kill() {
    ::kill(pid_, SIGKILL);
    return wait();
  }

 private:
  pid_t pid_;
};

}  // namespace hedgerow::tests
