#include "coordinator/cli/terminal/interrupt.hpp"

#include <unistd.h>

#include <atomic>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

std::atomic<int> interrupts = 0;
std::atomic<int> reloads = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler touches it");

// The running command obeys the second signal. Should it hang (a dead network file system), the
// alarm ends the process.
constexpr unsigned kLastResortSeconds = 5;

// A batch system says SIGTERM to every process of a job and once more through its shell: that is
// one request. Only a person's second Ctrl-C means more than the first.
void on_signal(int number) {
  if (number != SIGINT && interrupts.load() > 0) return;
  if (interrupts.fetch_add(1) > 0) alarm(kLastResortSeconds);
}

void on_reload(int /*number*/) { reloads.fetch_add(1); }

void on_alarm(int /*number*/) { _exit(static_cast<int>(storage::ExitCode::kInterrupted)); }

}  // namespace

InterruptScope::InterruptScope() {
  interrupts = 0;
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, &saved_interrupt_);
  sigaction(SIGTERM, &action, &saved_terminate_);
  sigaction(SIGUSR1, &action, &saved_user_);
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, &saved_alarm_);
}

InterruptScope::~InterruptScope() {
  alarm(0);
  sigaction(SIGALRM, &saved_alarm_, nullptr);
  sigaction(SIGINT, &saved_interrupt_, nullptr);
  sigaction(SIGTERM, &saved_terminate_, nullptr);
  sigaction(SIGUSR1, &saved_user_, nullptr);
  interrupts = 0;
}

ReloadScope::ReloadScope() {
  reloads = 0;
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = on_reload;
  sigaction(SIGHUP, &action, &saved_);
}

ReloadScope::~ReloadScope() { sigaction(SIGHUP, &saved_, nullptr); }

const std::atomic<int>& num_reloads() { return reloads; }

ClosedPipeScope::ClosedPipeScope() {
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &saved_);
}

ClosedPipeScope::~ClosedPipeScope() { sigaction(SIGPIPE, &saved_, nullptr); }

bool is_interrupted() { return interrupts > 0; }

const std::atomic<int>& num_interrupts() { return interrupts; }

void interrupt() { interrupts.fetch_add(1); }

}  // namespace hedgerow::coordinator::cli
