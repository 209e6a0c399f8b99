// Child processes on this host. A child runs in a session of its own, so that Ctrl-C at the
// terminal reaches the coordinator alone, and it is not tied to its parent's life: when the
// coordinator is killed, it lives on and the next coordinator adopts it by pid and start time. One
// thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/wire/coordinator_file.hpp"

namespace hedgerow::coordinator {

struct ProcessExit {
  int code = 0;  // valid if signal is 0
  int signal = 0;
  bool known = true;  // false: an adopted process, whose status its dead parent would have got
  [[nodiscard]] std::string text()
      const;  // "exited with code 1", "was killed by signal 9 (Killed)", "ended"
};

class ChildProcess {
 public:
  // argv[0] is searched in PATH if it has no slash. stdout and stderr are appended to `log`.
  // Throws kNotFound, kUnavailable.
  static ChildProcess start(const std::vector<std::string>& argv, const std::filesystem::path& log);
  // One that an earlier coordinator started.
  static ChildProcess adopt(const wire::ProcessId& id);

  [[nodiscard]] const wire::ProcessId& id() const { return id_; }
  // nullopt while it runs; reaps a child of ours.
  [[nodiscard]] std::optional<ProcessExit> poll();
  void signal(int number) const;  // to its whole process group; nothing if it has ended

 private:
  ChildProcess(wire::ProcessId id, bool ours) : id_(id), ours_(ours) {}
  wire::ProcessId id_;
  bool ours_ = true;
  std::optional<ProcessExit> exit_;
};

}  // namespace hedgerow::coordinator
