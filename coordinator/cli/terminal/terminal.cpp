#include "coordinator/cli/terminal/terminal.hpp"

#include <algorithm>
#include <cmath>

#include "coordinator/cli/terminal/format.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using std::chrono::duration;

constexpr std::string_view kClearLine = "\r\x1b[2K";
constexpr std::chrono::seconds kSilentFor{2};        // work shorter than this shows no bar
constexpr std::chrono::milliseconds kRedraw{100};    // on a tty
constexpr std::chrono::seconds kPlainLineEvery{10};  // elsewhere

bool understands_escapes(const Console& console) {
  return console.environment("TERM").value_or("dumb") != "dumb";
}

}  // namespace

void Terminal::configure(std::string command, TerminalOptions options) {
  command_ = std::move(command);
  options_ = options;
}

bool Terminal::can_redraw() const {
  return !options_.quiet && console_.err_is_tty() && understands_escapes(console_);
}

bool Terminal::has_colour() const {
  const std::string no_colour = console_.environment("NO_COLOR").value_or("");
  return !options_.json && no_colour.empty() && console_.out_is_tty() &&
         understands_escapes(console_);
}

std::string Terminal::coloured(std::string_view text, std::string_view sgr) const {
  if (!has_colour()) return std::string(text);
  return "\x1b[" + std::string(sgr) + "m" + std::string(text) + "\x1b[0m";
}

void Terminal::print(std::string_view line) {
  if (options_.json) return;
  clear_status();
  console_.write_out(std::string(line) + "\n");
}

void Terminal::print_json(const nlohmann::json& object) {
  if (!options_.json) return;
  nlohmann::json whole = {{"schema", kJsonSchema}, {"command", command_}};
  whole.update(object);
  clear_status();
  console_.write_out(whole.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void Terminal::write_line_err(std::string_view line) {
  clear_status();
  console_.write_err(std::string(line) + "\n");
}

void Terminal::say(std::string_view line) {
  if (!options_.quiet) write_line_err(line);
}

void Terminal::detail(std::string_view line) {
  if (options_.verbose > 0) write_line_err(line);
}

void Terminal::warn(std::string_view line) { write_line_err("warning: " + std::string(line)); }

void Terminal::error(const storage::Error& error) {
  const std::string prefix = command_ == "hedgerow" ? "hedgerow: " : "hedgerow " + command_ + ": ";
  write_line_err(prefix + error.what());
  print_json({{"error", {{"kind", storage::to_string(error.kind())}, {"message", error.what()}}},
              {"exit_code", static_cast<int>(storage::exit_code(error.kind()))}});
}

void Terminal::status(std::string_view line) {
  if (!can_redraw()) return;
  // One column less than the width: a full last column makes some terminals wrap.
  console_.write_err(std::string(kClearLine) + fit(one_line(line), width() - 1));
  has_status_ = true;
}

void Terminal::clear_status() {
  if (!has_status_) return;
  console_.write_err(kClearLine);
  has_status_ = false;
}

bool Terminal::confirm(std::string_view question, std::string_view otherwise) {
  if (!console_.in_is_tty() || !console_.err_is_tty()) {
    write_line_err(otherwise);
    return false;
  }
  clear_status();
  console_.write_err(std::string(question) + " [y/N] ");
  const std::string answer = console_.read_line().value_or("");
  return answer == "y" || answer == "Y" || answer == "yes";
}

ProgressBar::ProgressBar(Terminal& terminal, std::string label)
    : terminal_(terminal),
      label_(std::move(label)),
      begin_(terminal.console().now()),
      shown_(begin_ + kSilentFor - kPlainLineEvery) {}

ProgressBar::~ProgressBar() { terminal_.clear_status(); }

void ProgressBar::update(double fraction, std::string_view note) {
  const auto now = terminal_.console().now();
  if (now - begin_ < kSilentFor) return;
  const bool redraws = terminal_.can_redraw();
  if (now - shown_ < (redraws ? duration<double>(kRedraw) : duration<double>(kPlainLineEvery)))
    return;
  shown_ = now;
  const double so_far = duration<double>(now - begin_).count();
  const std::string line = progress_line(label_, fraction, so_far, note, terminal_.width() - 1);
  redraws ? terminal_.status(line) : terminal_.say(line);
}

std::string progress_line(std::string_view label,
                          double fraction,
                          double seconds_so_far,
                          std::string_view note,
                          int width) {
  const double done = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0.0;
  std::vector<Field> fields{
      {"", std::string(label), 4},
      {" ", std::to_string(static_cast<int>(std::floor(done * 100.0))) + "%", 3}};
  if (!note.empty()) fields.push_back({"  ", std::string(note), 1});
  // Before one part in a hundred an estimate would jump about more than it tells.
  if (done >= 0.01 && done < 1.0)
    fields.push_back({"  ", "eta " + duration_text(seconds_so_far * (1.0 - done) / done), 2});
  const int left = width - 1 - static_cast<int>(join(fields, kUnlimitedWidth).size());
  if (left >= 6) fields.insert(fields.begin() + 1, {" ", bar(done, std::min(left, 30)), 0});
  return join(std::move(fields), width);
}

}  // namespace hedgerow::coordinator::cli
