// Where the characters go and come from: the process's three streams, its clock and its
// environment, behind one interface so that every command runs in a test against a fake. Policy
// (what to show) is Terminal's.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hedgerow::coordinator::cli {

class Console {
 public:
  virtual ~Console() = default;

  virtual void write_out(std::string_view bytes) = 0;  // stdout: answers
  virtual void write_err(std::string_view bytes) = 0;  // stderr: talk
  [[nodiscard]] virtual bool out_is_tty() const = 0;
  [[nodiscard]] virtual bool err_is_tty() const = 0;
  [[nodiscard]] virtual bool in_is_tty() const = 0;
  [[nodiscard]] virtual int width() const = 0;   // columns; 80 when unknown
  [[nodiscard]] virtual int height() const = 0;  // lines; 24 when unknown
  // One line of stdin without its end; nullopt at end of file.
  [[nodiscard]] virtual std::optional<std::string> read_line() = 0;
  // Waits for one key press on a tty (no Enter needed), at most `timeout`; simply waits when stdin
  // is no tty.
  [[nodiscard]] virtual std::optional<char> wait_for_key(std::chrono::milliseconds timeout) = 0;
  [[nodiscard]] virtual std::optional<std::string> environment(const std::string& name) const = 0;
  [[nodiscard]] virtual std::chrono::steady_clock::time_point now() const = 0;
};

// The process's own. Ends the process quietly when stdout's reader went away (`hedgerow logs |
// head`), but for commands that go on without a reader (interrupt.hpp).
[[nodiscard]] std::unique_ptr<Console> system_console();

}  // namespace hedgerow::coordinator::cli
