// What a command says, and how: the answer on stdout, talk on stderr, one status line that is
// redrawn on a tty and never written to a pipe, JSON instead of text with --json. Commands know
// nothing else about the screen. One thread.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "coordinator/cli/terminal/console.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {

// The schema of every JSON document that hedgerow prints; grows when a field changes its meaning or
// goes, not when one joins.
inline constexpr int kJsonSchema = 1;

struct TerminalOptions {
  bool json = false;   // answers are JSON: one object a line
  bool quiet = false;  // no talk, no status line; errors and answers stay
  int verbose = 0;     // 1: details, 2: what child processes say
};

class Terminal {
 public:
  explicit Terminal(Console& console) : console_(console) {}

  // Set by the command line before the command runs; `command` heads every JSON answer and error.
  void configure(std::string command, TerminalOptions options);
  [[nodiscard]] const TerminalOptions& options() const { return options_; }
  [[nodiscard]] Console& console() { return console_; }
  [[nodiscard]] int width() const { return console_.width(); }
  // The width of the answer: a file or a pipe has no last column.
  [[nodiscard]] int answer_width() const {
    return console_.out_is_tty() ? console_.width() : kUnlimitedWidth;
  }
  [[nodiscard]] bool can_redraw()
      const;  // stderr is a tty that understands escapes, and talk is wanted
  [[nodiscard]] bool has_colour() const;  // stdout is such a tty and NO_COLOR is unset or empty
  [[nodiscard]] std::string coloured(std::string_view text, std::string_view sgr) const;

  void print(std::string_view line);  // the answer, as text; nothing with --json
  void print_json(const nlohmann::json&
                      object);  // the answer, as {"schema","command",...}; nothing without --json
  void say(std::string_view line);     // talk
  void detail(std::string_view line);  // talk with -v
  void warn(std::string_view line);    // talk that --quiet does not silence
  void error(
      const storage::Error& error);  // one message on stderr, with --json an object on stdout too
  void status(
      std::string_view line);  // redraws the status line; nothing where can_redraw() is false
  void clear_status();
  // Asks on a tty. Without one the answer is no, and `otherwise` (as "pass --yes") is said.
  [[nodiscard]] bool confirm(std::string_view question, std::string_view otherwise);

 private:
  void write_line_err(std::string_view line);

  Console& console_;
  std::string command_ = "hedgerow";
  TerminalOptions options_;
  bool has_status_ = false;
};

// A bar with an ETA for work that takes longer than two seconds: redrawn at most ten times a second
// on a tty, one plain line every ten seconds elsewhere, silent when the work is over sooner.
class ProgressBar {
 public:
  ProgressBar(Terminal& terminal, std::string label);
  ~ProgressBar();  // clears the status line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(double fraction, std::string_view note = {});  // fraction in 0..1 of the whole

 private:
  Terminal& terminal_;
  std::string label_;
  std::chrono::steady_clock::time_point begin_, shown_;
};

// The bar as a line of at most `width` columns: "tokenize [####----] 45%  3.1 MB/s  eta 12s".
[[nodiscard]] std::string progress_line(std::string_view label,
                                        double fraction,
                                        double seconds_so_far,
                                        std::string_view note,
                                        int width);

}  // namespace hedgerow::coordinator::cli
