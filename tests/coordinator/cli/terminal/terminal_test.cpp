#include "coordinator/cli/terminal/terminal.hpp"

#include "tests/coordinator/cli/fake_console.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using namespace std::chrono_literals;

FakeConsole screen() {
  FakeConsole console;
  console.is_tty = true;
  console.variables["TERM"] = "xterm";
  return console;
}

TEST(Terminal, PipedProgressIsPlainLinesWithoutEscapesTenSecondsApart) {
  FakeConsole console;
  Terminal terminal(console);
  ProgressBar progress(terminal, "copy");
  for (int second = 0; second <= 25; ++second) {
    console.time = std::chrono::steady_clock::time_point(std::chrono::seconds(second));
    progress.update(second / 50.0);
  }
  EXPECT_EQ(console.err,
            "copy [#---------------------------] 4%  eta 48s\n"
            "copy [######----------------------] 24%  eta 38s\n"
            "copy [############----------------] 44%  eta 28s\n");
  EXPECT_EQ(console.out, "") << "talk belongs on stderr";
}

TEST(Terminal, ANarrowBarLosesItsNoteAndThenItsEtaAsAWhole) {
  EXPECT_EQ(progress_line("tokenize transfer", 0.25, 30, "3.1 MB of 12.4 MB", 79),
            "tokenize transfer [######-------------------] 25%  3.1 MB of 12.4 MB  eta 1m30s");
  EXPECT_EQ(progress_line("tokenize transfer", 0.25, 30, "3.1 MB of 12.4 MB", 40),
            "tokenize transfer 25%  eta 1m30s");
  EXPECT_EQ(progress_line("tokenize transfer", 0.25, 30, "3.1 MB of 12.4 MB", 25),
            "tokenize transfer 25%");
}

TEST(Terminal, WorkUnderTwoSecondsShowsNoBar) {
  FakeConsole console = screen();
  Terminal terminal(console);
  {
    ProgressBar progress(terminal, "copy");
    console.time += 1900ms;
    progress.update(0.9);
  }
  EXPECT_EQ(console.err, "");
}

TEST(Terminal, StatusLineIsRedrawnAndGoneBeforeTheNextLine) {
  FakeConsole console = screen();
  console.columns = 10;
  Terminal terminal(console);
  terminal.status("a status that is too long");
  terminal.say("done");
  EXPECT_EQ(console.err, "\r\x1b[2Ka status~\r\x1b[2Kdone\n");
}

TEST(Terminal, DumbOrQuietTerminalsGetNoStatusLine) {
  FakeConsole dumb = screen();
  dumb.variables["TERM"] = "dumb";
  Terminal(dumb).status("x");
  EXPECT_EQ(dumb.err, "");
  FakeConsole quiet = screen();
  Terminal terminal(quiet);
  terminal.configure("run", {.quiet = true});
  terminal.status("x");
  terminal.say("y");
  EXPECT_EQ(quiet.err, "");
}

TEST(Terminal, NoColourIsObeyedUnlessEmpty) {
  FakeConsole console = screen();
  EXPECT_EQ(Terminal(console).coloured("ok", "32"), "\x1b[32mok\x1b[0m");
  console.variables["NO_COLOR"] = "";
  EXPECT_EQ(Terminal(console).coloured("ok", "32"), "\x1b[32mok\x1b[0m");
  console.variables["NO_COLOR"] = "1";
  EXPECT_EQ(Terminal(console).coloured("ok", "32"), "ok");
}

TEST(Terminal, AnswersAreEitherTextOrJsonNeverBoth) {
  FakeConsole console;
  Terminal terminal(console);
  terminal.configure("status", {.json = true});
  terminal.print("text");
  terminal.print_json({{"state", "bad utf-8 \xff"}});
  ASSERT_EQ(console.out_json().size(), 1U);
  EXPECT_EQ(console.out_json()[0]["schema"], kJsonSchema);
  EXPECT_EQ(console.out_json()[0]["command"], "status");
}

TEST(Terminal, ConfirmIsNoWithoutSomebodyToAsk) {
  FakeConsole piped;
  EXPECT_FALSE(Terminal(piped).confirm("remove?", "pass --yes"));
  EXPECT_EQ(piped.err, "pass --yes\n");
  FakeConsole console = screen();
  console.typed = {"y", "n"};
  Terminal terminal(console);
  EXPECT_TRUE(terminal.confirm("remove?", ""));
  EXPECT_FALSE(terminal.confirm("remove?", ""));
  EXPECT_FALSE(terminal.confirm("remove?", "")) << "end of input is no consent";
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
