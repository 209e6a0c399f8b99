#include "coordinator/cli/programs/child.hpp"

#include <chrono>

#include "coordinator/cli/terminal/interrupt.hpp"
#include "storage/base/error.hpp"
#include "tests/coordinator/cli/fake_console.hpp"

namespace hedgerow::coordinator::cli {
namespace {

ChildResult shell(const std::string& script, const std::string& input, std::string* out) {
  FakeConsole console;
  Terminal terminal(console);
  return run_child({.arguments = {"/bin/sh", "-c", script}, .input = input},
                   terminal,
                   [&](auto line) { *out += std::string(line) + "|"; });
}

TEST(Child, LinesArriveWholeWithTheLastOneUnterminated) {
  std::string out;
  EXPECT_TRUE(shell("printf 'one\\ntw'; printf 'o\\nthree'", "", &out).ok());
  EXPECT_EQ(out, "one|two|three|");
}

TEST(Child, InputLargerThanAPipeIsFedWhileTheOutputIsTaken) {
  std::string input;
  for (int i = 0; i < 40'000; ++i) input += "0123456789\n";
  std::string out;
  EXPECT_TRUE(shell("cat", input, &out).ok());
  EXPECT_EQ(out.size(), input.size());
}

TEST(Child, ClosingStdinEarlyDoesNotEndThisProcess) {
  std::string out;
  EXPECT_TRUE(shell("exec 0<&-; echo done", std::string(1 << 20, 'x'), &out).ok());
  EXPECT_EQ(out, "done|");
}

TEST(Child, FailureKeepsItsCodeAndTheLastLineOfStderr) {
  std::string out;
  const ChildResult result =
      shell("echo first >&2; echo 'error: no such recipe' >&2; exit 2", "", &out);
  EXPECT_EQ(result.exit_code, 2);
  const storage::Error error = child_error("make_tokens.py", result);
  EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
  EXPECT_STREQ(error.what(), "no such recipe");
}

// Catches: mpirun's frame as the reason, or what a rank says that failed because another did.
TEST(Child, OfRanksTheReasonIsThatOfTheOneThatFailed) {
  std::string out;
  const auto error_of = [&out](const std::vector<std::string>& lines, int code) {
    std::string script;
    for (const std::string& line : lines) script += "echo '" + line + "' >&2; ";
    return child_error("hedgerow-worker generate",
                       shell(script + "exit " + std::to_string(code), "", &out));
  };
  const storage::Error failed = error_of({"hedgerow-worker: a note",
                                          "hedgerow-worker: rank 2: no such layer",
                                          "hedgerow-worker: rank 0: rank 2 is lost",
                                          "--------",
                                          "mpirun detected that one or more processes exited",
                                          "--------"},
                                         2);
  EXPECT_EQ(failed.kind(), storage::ErrorKind::kUsage);
  EXPECT_STREQ(failed.what(), "rank 2: no such layer");
  const storage::Error unranked = error_of(
      {"hedgerow-worker: built without MPI", "hedgerow-worker: built without MPI", "--------"}, 2);
  EXPECT_STREQ(unranked.what(), "built without MPI");
  const std::string notice = "mpirun noticed that process rank 1 with PID 7 on node a exited";
  const storage::Error killed =
      error_of({"hedgerow-worker: rank 0: rank 1 is lost", "--------", notice, "--------"}, 137);
  EXPECT_EQ(killed.kind(), storage::ErrorKind::kUnavailable);
  EXPECT_NE(std::string(killed.what()).find(notice), std::string::npos) << killed.what();
}

TEST(Child, OneThatOutrunsItsLimitIsEndedAndCalledUnavailable) {
  FakeConsole console;
  Terminal terminal(console);
  const ChildResult result =
      run_child({.arguments = {"sleep", "100"}, .limit = std::chrono::seconds(0)},
                terminal,
                [](std::string_view) {});
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(child_error("mpirun", result).kind(), storage::ErrorKind::kUnavailable);
}

TEST(Child, MissingProgramIsTheEnvironmentsFault) {
  FakeConsole console;
  Terminal terminal(console);
  try {
    run_child({.arguments = {"/no/such/program"}}, terminal, [](auto) {});
    FAIL() << "started a program that does not exist";
  } catch (const storage::Error& error) {
    EXPECT_EQ(storage::exit_code(error.kind()), storage::ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("/no/such/program"), std::string::npos)
        << error.what();
  }
}

TEST(Child, InterruptAsksItToStopAndIsReported) {
  const InterruptScope scope;
  FakeConsole console;
  Terminal terminal(console);
  const auto begin = std::chrono::steady_clock::now();
  const ChildResult result = run_child(
      {.arguments = {"/bin/sh", "-c", "echo started; sleep 60 & wait"}}, terminal, [](auto) {
        raise(SIGINT);
      });
  EXPECT_TRUE(result.was_interrupted);
  EXPECT_FALSE(result.ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9))
      << "waited for SIGKILL";
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
