#include <CLI/CLI.hpp>
#include <memory>
#include <thread>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/history_lines.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/cli/terminal/screen.hpp"
#include "coordinator/cli/terminal/view.hpp"
#include "coordinator/web/access.hpp"
#include "coordinator/web/server.hpp"
#include "storage/history/history_file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

constexpr std::chrono::milliseconds kRefresh{500};

struct WatchOptions {
  std::string run, web;
};

// The terminal's second screen, without a cursor; what was on the first is back afterwards.
class FullScreen {
 public:
  explicit FullScreen(Console& console) : console_(console) {
    console_.write_err("\x1b[?1049h\x1b[?25l");
  }
  ~FullScreen() { console_.write_err("\x1b[?25h\x1b[?1049l"); }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  void draw(const RunStatus& status, const storage::History& history, bool has_colour) {
    const auto rows = static_cast<std::size_t>(std::max(2, console_.height() - 1));
    const std::vector<std::string> lines = whole_view(status, console_.width(), rows, &history);
    std::string frame = "\x1b[H";
    // Erased before it is written: behind a full row the cursor still stands on its last letter.
    for (std::size_t i = 0; i < std::min(lines.size(), rows); ++i)
      frame += "\x1b[2K" + (has_colour ? coloured_heat(lines[i]) : lines[i]) + "\r\n";
    std::string foot = "q leaves; the run goes on";
    if (lines.size() > rows)
      foot.insert(0, "... " + std::to_string(lines.size() - rows) + " more rows | ");
    frame += "\x1b[J" + fit_words(foot, console_.width() - 1);
    console_.write_err(frame);
  }

 private:
  Console& console_;
};

bool has_ended(const RunStatus& status) {
  return status.state == "done" || status.state == "partial";
}

void draw_until_left(const storage::RunLayout& layout, Terminal& terminal) {
  FullScreen screen(terminal.console());
  storage::HistoryReader history(layout);
  while (!is_interrupted()) {
    const RunStatus status = read_status(layout);
    history.read_all();
    screen.draw(status, history.history(), terminal.has_colour());
    if (has_ended(status)) return;
    const auto key = terminal.console().wait_for_key(kRefresh);
    if (key && (*key == 'q' || *key == 'Q' || *key == '\x1b')) return;
  }
}

// Piped, or JSON: a line whenever something changed.
void print_until_left(const storage::RunLayout& layout, Terminal& terminal) {
  std::string last_line, last_update;
  storage::HistoryReader history(layout);
  while (!is_interrupted()) {
    const RunStatus status = read_status(layout);
    history.read_what_it_can();
    const std::string line =
        status.state + ": " + status_line(status, kUnlimitedWidth, &history.history());
    if (line != last_line) terminal.print(line);
    if (status.updated_at != last_update || line != last_line) terminal.print_json(status);
    last_line = line;
    last_update = status.updated_at;
    if (has_ended(status)) return;
    std::ignore = terminal.console().wait_for_key(kRefresh);
  }
}

// Prints where the page of the run is. Without a coordinator that has one it is served here until
// Ctrl-C.
ExitCode run_page(const storage::RunLayout& layout, const std::string& web, Terminal& terminal) {
  const RunStatus status = read_status(layout);
  const std::string secret = web_secret(layout);
  const auto tell = [&](const std::string& address) {
    terminal.print("page: " + address_to_open(address, secret));
    terminal.print_json({{"page", address_to_open(address, secret)}});
  };
  if (status.state == "running" && !status.web.empty()) {
    tell(status.web);
    return ExitCode::kOk;
  }
  const InterruptScope interrupts;
  const WebAddress address = web.empty() ? WebAddress{} : parse_web_address(web);
  const WebServer server(
      {.layout = layout, .host = address.host, .port = address.port, .secret = secret});
  tell(server.address());
  terminal.say("no coordinator is at work on the run; Ctrl-C ends its page");
  while (!is_interrupted()) std::this_thread::sleep_for(kRefresh);
  return ExitCode::kOk;
}

ExitCode run_watch(const std::string& directory, Terminal& terminal) {
  const storage::RunLayout layout(directory);
  const RunStatus first = read_status(layout);  // an error comes before the screen is taken
  const InterruptScope interrupts;
  const bool is_live =
      terminal.can_redraw() && !terminal.options().json && terminal.console().out_is_tty();
  if (!is_live) {
    print_until_left(layout, terminal);
    return ExitCode::kOk;
  }
  if (!has_ended(first)) draw_until_left(layout, terminal);
  storage::HistoryReader history(layout);
  history.read_all();
  for (const std::string& line :
       whole_view(read_status(layout), terminal.answer_width(), kUnlimitedRows, &history.history()))
    terminal.print(terminal.has_colour() ? coloured_heat(line) : line);
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_watch(CLI::App& app) {
  const auto options = std::make_shared<WatchOptions>();
  add_run(app, options->run);
  app.add_option("--web",
                 options->web,
                 "print the address of the run's page; where no coordinator serves it, serve it "
                 "here, on loopback by default")
      ->type_name("HOST:PORT")
      ->expected(0, 1);
  return [options, &app](Terminal& terminal) {
    const std::string run = run_or_here(options->run);
    return app.count("--web") > 0 ? run_page(storage::RunLayout(run), options->web, terminal)
                                  : run_watch(run, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
