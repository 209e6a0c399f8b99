#include "coordinator/cli/terminal/console.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <thread>

namespace hedgerow::coordinator::cli {
namespace {

constexpr int kDefaultWidth = 80, kDefaultHeight = 24;

// Keys arrive without Enter and without echo while it lives. ISIG stays on, so Ctrl-C is still a
// signal.
class RawKeys {
 public:
  RawKeys() {
    if (tcgetattr(STDIN_FILENO, &saved_) != 0) return;
    termios raw = saved_;
    raw.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO));
    is_raw_ = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  ~RawKeys() {
    if (is_raw_) tcsetattr(STDIN_FILENO, TCSANOW, &saved_);
  }
  RawKeys(const RawKeys&) = delete;
  RawKeys& operator=(const RawKeys&) = delete;

 private:
  termios saved_{};
  bool is_raw_ = false;
};

class SystemConsole final : public Console {
 public:
  void write_out(std::string_view bytes) override { write_all(STDOUT_FILENO, bytes); }
  void write_err(std::string_view bytes) override { write_all(STDERR_FILENO, bytes); }
  bool out_is_tty() const override { return isatty(STDOUT_FILENO) == 1; }
  bool err_is_tty() const override { return isatty(STDERR_FILENO) == 1; }
  bool in_is_tty() const override { return isatty(STDIN_FILENO) == 1; }
  int width() const override { return dimension("COLUMNS", &winsize::ws_col, kDefaultWidth); }
  int height() const override { return dimension("LINES", &winsize::ws_row, kDefaultHeight); }

  std::optional<std::string> read_line() override {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }

  std::optional<char> wait_for_key(std::chrono::milliseconds timeout) override {
    if (!in_is_tty()) {
      std::this_thread::sleep_for(timeout);
      return std::nullopt;
    }
    const RawKeys raw;
    pollfd event{STDIN_FILENO, POLLIN, 0};
    char key = 0;
    if (poll(&event, 1, static_cast<int>(timeout.count())) == 1 &&
        ::read(STDIN_FILENO, &key, 1) == 1) {
      return key;
    }
    return std::nullopt;
  }

  std::optional<std::string> environment(const std::string& name) const override {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

  std::chrono::steady_clock::time_point now() const override {
    return std::chrono::steady_clock::now();
  }

 private:
  static void write_all(int descriptor, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      // The reader has closed it: SIGPIPE has ended the process, unless the command goes on without
      // a reader (ClosedPipeScope).
      if (written < 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  int dimension(const char* name, unsigned short winsize::*field, int otherwise) const {
    winsize size{};
    for (const int descriptor : {STDERR_FILENO, STDOUT_FILENO}) {
      if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.*field > 0) return size.*field;
    }
    const auto text = environment(name);
    const int value = text ? std::atoi(text->c_str()) : 0;
    return value > 0 ? value : otherwise;
  }
};

}  // namespace

std::unique_ptr<Console> system_console() { return std::make_unique<SystemConsole>(); }

}  // namespace hedgerow::coordinator::cli
