// One helper process of a command (tokenizer, converter, hedgerow-worker generate, mpirun): its
// stdout arrives line by line, the end of its stderr is kept for the error message, unless both are
// this process's own. It runs in its own process group, is asked to stop (SIGTERM) when the command
// is interrupted, killed if its timeout ends, and dies with this process.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cli/terminal/terminal.hpp"

namespace hedgerow::coordinator::cli {

struct ChildCommand {
  std::vector<std::string>
      arguments;           // [0] is the program, looked up in PATH unless it holds a slash
  std::string input = {};  // its whole stdin
  std::optional<std::chrono::seconds> limit = {};  // then it is ended as if interrupted
  std::chrono::seconds timeout{10};                // from SIGTERM to SIGKILL
  bool speaks_itself = false;  // its stdout and stderr are ours: no lines, no stderr_tail
};

struct ChildResult {
  int exit_code = 0;  // 128 + signal when a signal ended it
  bool was_interrupted = false;
  bool timed_out = false;   // it outran ChildCommand::limit
  std::string stderr_tail;  // its last 4 KB
  [[nodiscard]] bool ok() const { return exit_code == 0 && !was_interrupted && !timed_out; }
};

// Runs it to its end. With -vv its stderr is shown as it comes. Throws kUnavailable if it cannot be
// started.
ChildResult run_child(const ChildCommand& command,
                      Terminal& terminal,
                      const std::function<void(std::string_view line)>& on_line);

// Replaces this process. Returns only by throwing kUnavailable.
[[noreturn]] void become(const std::vector<std::string>& arguments);

// The error of a child that failed, of the kind its exit code means: "<what> failed (exit code 1):
// <last stderr line>"; of kind kUsage that line alone, which says what to mend; of one that outran
// its limit kUnavailable. Of ranks under mpirun the line is that of the rank that failed; one that
// a signal ended is kUnavailable.
[[nodiscard]] storage::Error child_error(std::string_view what, const ChildResult& result);

}  // namespace hedgerow::coordinator::cli
