// Child processes on this host. A child runs in a session of its own, so that Ctrl-C at the
// terminal reaches the coordinator alone, and it is not tied to its parent's life: when the
// coordinator is killed, it lives on and the next coordinator adopts it by pid and start time. One
// thread.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/wire/coordinator_file.hpp"

namespace hedgerow::coordinator {

struct SpawnOptions {
  std::vector<std::string> argv;  // [0] is searched in PATH if it has no slash
  int in = -1, out = 1, err = 2;  // what become its stdin (-1: /dev/null), stdout and stderr
  // In a session of its own; else in a process group of its own, and it dies (SIGTERM) with this
  // process.
  bool outlives_us = false;
  std::optional<int> blocked = {};  // a signal that does not reach the program
};
// Starts a program, with signals as a fresh program expects them. The one spawner of hedgerow. From
// any thread. Throws kNotFound, kUsage (no permission) or kUnavailable if it cannot be started.
[[nodiscard]] pid_t spawn(const SpawnOptions& options);

struct ProcessExit {
  int code = 0;  // valid if signal is 0
  int signal = 0;
  bool known = true;  // false: an adopted process, whose status its dead parent would have got
  [[nodiscard]] std::string text()
      const;  // "exited with code 1", "was killed by signal 9 (Killed)", "ended"
};

// The processes of a host. The simulator has hosts of its own.
class Processes {
 public:
  virtual ~Processes() = default;
  [[nodiscard]] virtual wire::ProcessId self() const = 0;
  [[nodiscard]] virtual bool is_alive(const wire::ProcessId& id) const = 0;
  // A child of ours, in a session of its own. argv[0] is searched in PATH if it has no slash.
  // stdout and stderr are appended to `log`. `blocked`: a signal that does not reach the program
  // (its own children unblock it). Throws kNotFound, kUnavailable, kUsage (the log is a link).
  [[nodiscard]] virtual wire::ProcessId start(const std::vector<std::string>& argv,
                                              const std::filesystem::path& log,
                                              std::optional<int> blocked) = 0;
  // How a child of ours ended, which reaps it; nullopt while it runs.
  [[nodiscard]] virtual std::optional<ProcessExit> reap(const wire::ProcessId& child) = 0;
  virtual void signal_group(const wire::ProcessId& leader, int number) = 0;
};
[[nodiscard]] Processes& host_processes();

class ChildProcess {
 public:
  static ChildProcess start(const std::vector<std::string>& argv,
                            const std::filesystem::path& log,
                            Processes& processes = host_processes(),
                            std::optional<int> blocked = std::nullopt);
  // One that an earlier coordinator started.
  static ChildProcess adopt(const wire::ProcessId& id, Processes& processes = host_processes());

  [[nodiscard]] const wire::ProcessId& id() const { return id_; }
  // nullopt while it runs; reaps a child of ours.
  [[nodiscard]] std::optional<ProcessExit> poll();
  void signal(int number) const;  // to its whole process group; nothing if it has ended

 private:
  ChildProcess(wire::ProcessId id, bool ours, Processes& processes)
      : processes_(&processes), id_(id), ours_(ours) {}
  Processes* processes_;
  wire::ProcessId id_;
  bool ours_ = true;
  std::optional<ProcessExit> exit_;
};

}  // namespace hedgerow::coordinator
