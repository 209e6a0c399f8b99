// Ctrl-C, SIGTERM and SIGUSR1 (what Slurm sends ahead of a wall-time limit): the first asks the
// command to stop where it can go on later (exit code 4), a Ctrl-C after that to end now, without
// waiting for its children. Signals belong to the process, so the count does too; a command that
// runs long opens a scope.
#pragma once

#include <atomic>
#include <csignal>

namespace hedgerow::coordinator::cli {

class InterruptScope {
 public:
  InterruptScope();   // from now on they count instead of killing; the count starts at 0
  ~InterruptScope();  // the earlier handlers are back
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction saved_interrupt_ {};
  struct sigaction saved_terminate_ {};
  struct sigaction saved_user_ {};
  struct sigaction saved_alarm_ {};
};

// SIGHUP: read again what may change while a run goes on (keys/allowed).
class ReloadScope {
 public:
  ReloadScope();   // from now on SIGHUP counts; the count starts at 0
  ~ReloadScope();  // the earlier handler is back
  ReloadScope(const ReloadScope&) = delete;
  ReloadScope& operator=(const ReloadScope&) = delete;

 private:
  struct sigaction saved_ {};
};
[[nodiscard]] const std::atomic<int>& num_reloads();

// While it lives, a reader that goes away (`hedgerow run | head`, a closed terminal) costs the
// output and not the process: writing to it fails, and nothing more is said.
class ClosedPipeScope {
 public:
  ClosedPipeScope();
  ~ClosedPipeScope();
  ClosedPipeScope(const ClosedPipeScope&) = delete;
  ClosedPipeScope& operator=(const ClosedPipeScope&) = delete;

 private:
  struct sigaction saved_ {};
};

[[nodiscard]] bool is_interrupted();  // false outside a scope; any thread
[[nodiscard]] const std::atomic<int>&
num_interrupts();  // for those who tell the first from the second
void interrupt();  // what the signal does, without a signal; any thread

}  // namespace hedgerow::coordinator::cli
