#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "coordinator/cli/command.hpp"
#include "tests/coordinator/cli/fake_console.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

bool has_program(const std::string& name) {
  return std::system(("command -v " + name + " > /dev/null 2>&1").c_str()) == 0;
}

// What `shell` answers to a script that sources the completion from $1.
std::string ask(const std::string& shell, const std::string& script) {
  const fs::path directory =
      fs::temp_directory_path() / ("hedgerow-completion-" + std::to_string(getpid()));
  fs::create_directories(directory);
  const fs::path completion = directory / "completion", question = directory / "question",
                 answer = directory / "answer";
  std::ofstream(completion) << run_line({"completion", shell}).out;
  std::ofstream(question) << script;
  const std::string command = shell + " " + question.string() + " " + completion.string() + " > " +
                              answer.string() + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(answer);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  fs::remove_all(directory);
  return text;
}

TEST(Completion, BashCompletesCommandsOptionsAndChoices) {
  const std::string answer = ask("bash", R"(source "$1"
complete_line() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _hedgerow; echo "${COMPREPLY[@]}"; }
complete_line hedgerow comp
complete_line hedgerow completion --j
complete_line hedgerow completion z
)");
  EXPECT_EQ(answer, "completion\n--json\nzsh\n");
}

TEST(Completion, EveryCommandIsInEveryShellsScript) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = run_line({"completion", shell}).out;
    for (const Command& command : all_commands()) {
      EXPECT_NE(script.find(command.name), std::string::npos) << shell << ": " << command.name;
    }
  }
}

TEST(Completion, ZshAcceptsItsScript) {
  if (!has_program("zsh")) GTEST_SKIP() << "no zsh on this machine";
  EXPECT_EQ(ask("zsh", "zsh -n \"$1\" && echo fine"), "fine\n");
}

TEST(Completion, FishCompletesCommands) {
  if (!has_program("fish")) GTEST_SKIP() << "no fish on this machine";
  const std::string answer = ask("fish", "source $argv[1]\ncomplete -C 'hedgerow comp'\n");
  EXPECT_TRUE(answer.starts_with("completion\t")) << answer;
}

TEST(Completion, UnknownShellIsAUsageError) {
  const Answer answer = run_line({"completion", "powershell"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(answer.out, "");
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
