#include "coordinator/cli/programs/child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/host/process.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using Clock = std::chrono::steady_clock;
using storage::Error;
using storage::ErrorKind;

constexpr std::size_t kStderrTail = 4096;
constexpr int kPollMilliseconds = 100;

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw storage::system_error("open", "a pipe", errno);
    read_end = ends[0];
    write_end = ends[1];
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_end(read_end);
    close_end(write_end);
  }
  static void close_end(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

// The parent's side of one child: feeds stdin, splits stdout into lines, keeps the end of stderr.
class Conversation {
 public:
  Conversation(const ChildCommand& command,
               Terminal& terminal,
               const std::function<void(std::string_view)>& on_line)
      : command_(command), terminal_(terminal), on_line_(on_line) {
    pid_ = spawn({.argv = command.arguments,
                  .in = in_.read_end,
                  .out = command.speaks_itself ? STDOUT_FILENO : out_.write_end,
                  .err = command.speaks_itself ? STDERR_FILENO : err_.write_end});
    Pipe::close_end(in_.read_end);
    Pipe::close_end(out_.write_end);
    Pipe::close_end(err_.write_end);
    fcntl(in_.write_end, F_SETFL, O_NONBLOCK);
    if (command.input.empty()) Pipe::close_end(in_.write_end);
  }

  ~Conversation() {  // a throwing on_line leaves it running
    if (pid_ > 0) {
      kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  ChildResult run() {
    while (out_.read_end >= 0 || err_.read_end >= 0) {
      stop_if_interrupted();
      std::array<pollfd, 3> events{
          {{out_.read_end, POLLIN, 0}, {err_.read_end, POLLIN, 0}, {in_.write_end, POLLOUT, 0}}};
      if (poll(events.data(), events.size(), kPollMilliseconds) <= 0) continue;
      if (events[0].revents != 0) take_stdout();
      if (events[1].revents != 0) take_stderr();
      if (events[2].revents != 0) feed();
    }
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      stop_if_interrupted();
      poll(nullptr, 0, command_.speaks_itself ? kPollMilliseconds : kPollMilliseconds / 10);
    }
    pid_ = -1;
    result_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result_;
  }

 private:
  void stop_if_interrupted() {
    const bool is_late = command_.limit && Clock::now() - begin_ > *command_.limit;
    if (!is_interrupted() && !is_late) return;
    if (!asked_to_stop_at_) {
      (is_interrupted() ? result_.was_interrupted : result_.timed_out) = true;
      asked_to_stop_at_ = Clock::now();
      kill(-pid_, SIGTERM);
    } else if (num_interrupts() > 1 || Clock::now() - *asked_to_stop_at_ > command_.timeout) {
      kill(-pid_, SIGKILL);
    }
  }

  // Bytes that arrived; closes the descriptor at its end.
  static std::string_view take(int& descriptor, std::array<char, 65536>& buffer) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count > 0) return {buffer.data(), static_cast<std::size_t>(count)};
    if (count == 0 || (errno != EINTR && errno != EAGAIN)) Pipe::close_end(descriptor);
    return {};
  }

  void take_stdout() {
    pending_ += take(out_.read_end, buffer_);
    std::size_t begin = 0;
    for (std::size_t end = pending_.find('\n'); end != std::string::npos;
         end = pending_.find('\n', begin)) {
      on_line_(std::string_view(pending_).substr(begin, end - begin));
      begin = end + 1;
    }
    pending_.erase(0, begin);
    if (out_.read_end < 0 && !pending_.empty()) on_line_(std::exchange(pending_, {}));
  }

  void take_stderr() {
    const std::string_view text = take(err_.read_end, buffer_);
    if (terminal_.options().verbose >= 2 && !text.empty()) {
      terminal_.clear_status();
      terminal_.console().write_err(text);
    }
    std::string& tail = result_.stderr_tail;
    tail += text;
    if (tail.size() > kStderrTail) tail.erase(0, tail.size() - kStderrTail);
  }

  void feed() {
    const ssize_t count =
        ::write(in_.write_end, command_.input.data() + num_fed_, command_.input.size() - num_fed_);
    if (count > 0) num_fed_ += static_cast<std::size_t>(count);
    const bool failed = count < 0 && errno != EINTR && errno != EAGAIN;
    if (failed || num_fed_ == command_.input.size()) Pipe::close_end(in_.write_end);
  }

  const ChildCommand& command_;
  Terminal& terminal_;
  const std::function<void(std::string_view)>& on_line_;
  Pipe in_, out_, err_;
  pid_t pid_ = -1;
  std::size_t num_fed_ = 0;
  std::string pending_;
  std::array<char, 65536> buffer_{};
  const Clock::time_point begin_ = Clock::now();
  std::optional<Clock::time_point> asked_to_stop_at_;
  ChildResult result_;
};

// The first line that begins with `words`; empty: none does.
std::string line_with(const std::string& text, std::string_view words) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    if (line.starts_with(words)) return std::string(line);
    begin = end + 1;
  }
  return "";
}

constexpr std::string_view kOurWorker = "hedgerow-worker: ";
// mpirun's of a rank that crashed or was killed. The others end because of it.
constexpr std::string_view kLostRank = "mpirun noticed that process rank ";
constexpr std::string_view kFailedRank = "hedgerow-worker: rank ";

// Without the words that our own helpers begin it with.
std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  text.erase(0, text.find_last_of('\n') + 1);  // npos + 1 == 0
  for (const std::string_view prefix : {std::string_view("error: "), kOurWorker}) {
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
  }
  return text;
}

// The cause where several ranks end: what stands behind it, mpirun's own lines too, follows from
// it.
std::string reason_in(const std::string& text) {
  if (const std::string lost = line_with(text, kLostRank); !lost.empty()) return lost;
  if (const std::string failed = line_with(text, kFailedRank); !failed.empty())
    return failed.substr(kOurWorker.size());
  std::string last = last_line(text);
  if (last.find_first_not_of('-') != std::string::npos) return last;
  // mpirun's frame: none of them came as far as to have a rank.
  const std::string first = line_with(text, kOurWorker);
  return first.empty() ? last : first.substr(kOurWorker.size());
}

}  // namespace

ChildResult run_child(const ChildCommand& command,
                      Terminal& terminal,
                      const std::function<void(std::string_view)>& on_line) {
  std::string shown;
  for (const std::string& argument : command.arguments) shown += " " + argument;
  terminal.detail("running" + shown);
  const ClosedPipeScope no_sigpipe;  // a child may close its stdin early
  std::optional<Conversation> conversation;
  try {
    conversation.emplace(command, terminal, on_line);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUnavailable,
                std::string("cannot ") + error.what() + "; 'hedgerow doctor' says what is missing");
  }
  return conversation->run();
}

void become(const std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (const std::string& text : arguments) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  throw storage::system_error("run", arguments[0], errno);
}

Error child_error(std::string_view what, const ChildResult& result) {
  ErrorKind kind = ErrorKind::kInternal;
  if (result.exit_code == static_cast<int>(storage::ExitCode::kUsage)) kind = ErrorKind::kUsage;
  if (result.exit_code == static_cast<int>(storage::ExitCode::kEnvironment))
    kind = ErrorKind::kUnavailable;
  const std::string reason = reason_in(result.stderr_tail);
  if (reason.starts_with(kLostRank)) kind = ErrorKind::kUnavailable;
  if (result.timed_out) {
    return {ErrorKind::kUnavailable,
            std::string(what) + " did not end in time and was stopped" +
                (reason.empty() ? "" : ": " + reason)};
  }
  // What the user can mend is said whole by its sentence; which helper found it is no part of it.
  if (kind == ErrorKind::kUsage && !reason.empty()) return {kind, reason};
  return {kind,
          std::string(what) + " failed (exit code " + std::to_string(result.exit_code) + ")" +
              (reason.empty() ? "; run it again with -vv to see what it says" : ": " + reason)};
}

}  // namespace hedgerow::coordinator::cli
