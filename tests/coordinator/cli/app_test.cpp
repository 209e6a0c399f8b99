#include "coordinator/cli/app.hpp"

#include <gmock/gmock.h>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/terminal/terminal.hpp"
#include "tests/coordinator/cli/fake_console.hpp"

namespace hedgerow::coordinator::cli {
namespace {

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : all_commands()) names.emplace_back(command.name);
  return names;
}

class EveryCommand : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cli,
                         EveryCommand,
                         ::testing::ValuesIn(command_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(EveryCommand, HelpEndsWithTheExitCodesAndFitsEightyAndFortyColumns) {
  for (const int columns : {80, 40}) {
    FakeConsole console;
    console.columns = columns;
    EXPECT_EQ(run({GetParam(), "--help"}, console), storage::ExitCode::kOk);
    const std::vector<std::string> lines = console.out_lines();
    for (const std::string& line : lines) {
      EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << GetParam() << ": " << line;
    }
    const std::size_t table = console.out.find("\nexit codes:\n");
    ASSERT_NE(table, std::string::npos) << console.out;
    EXPECT_EQ(console.out.find("\n\n", table + 1), std::string::npos)
        << "something follows the exit codes";
    for (const char* code : {"  0 ", "  1 ", "  2 ", "  3 ", "  4 ", "  5 "}) {
      EXPECT_NE(console.out.find(code, table), std::string::npos) << code;
    }
  }
}

TEST_P(EveryCommand, UnknownOptionIsOneErrorWithTheUsageCodeInTextAndJson) {
  const Answer answer = run_line({GetParam(), "--json", "--no-such-option"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
  EXPECT_TRUE(answer.err.starts_with("hedgerow " + GetParam() + ": ")) << answer.err;
  ASSERT_EQ(answer.json.size(), 1U);
  EXPECT_EQ(answer.json[0]["schema"], kJsonSchema);
  EXPECT_EQ(answer.json[0]["error"]["kind"], "usage");
  EXPECT_EQ(answer.json[0]["exit_code"], 2);
}

TEST_P(EveryCommand, HelpInJsonParses) {
  const Answer answer = run_line({GetParam(), "--help", "--json"});
  EXPECT_EQ(answer.code, 0);
  ASSERT_EQ(answer.json.size(), 1U);
  EXPECT_TRUE(answer.json[0]["help"].is_string());
}

TEST(Cli, VersionSaysTheBuildInTextAndJson) {
  const Answer text = run_line({"--version"});
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(text.out.starts_with("hedgerow 0.")) << text.out;
  const Answer json = run_line({"--version", "--json"});
  ASSERT_EQ(json.json.size(), 1U);
  EXPECT_TRUE(json.json[0]["version"].is_string());
}

TEST(Cli, NoCommandPrintsTheListAndIsAUsageError) {
  const Answer answer = run_line({});
  EXPECT_EQ(answer.code, 2);
  for (const std::string& name : command_names()) {
    EXPECT_NE(answer.out.find("\n  " + name + " "), std::string::npos) << name;
  }
}

TEST(Cli, MistypedCommandNamesTheNearest) {
  const Answer answer = run_line({"completoin"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(answer.err,
            "hedgerow: 'completoin' is no command, did you mean 'completion'?; 'hedgerow --help' "
            "lists them all\n");
}

// What a mistyped command line is answered with, less the command's name.
struct Mistyped {
  std::vector<std::string> line;
  std::string answer;
};

TEST(Cli, AMistypedLineIsAnsweredWithWhatWasExpectedFoundAndMeant) {
  const Mistyped all[] = {
      {{"init", "model", "--dat", "text"}, "init has no option --dat, did you mean '--data'?"},
      {{"status", "-recipe"}, "status has no option -recipe"},
      {{"plan", "-recipe", "r"}, "plan has no option -recipe, did you mean '--recipe'?"},
      {{"generate", "--temp", "2"}, "generate has no option --temp, did you mean '--temperature'?"},
      {{"status", "--temp"}, "status has no option --temp"},
      {{"completion", "tcsh"}, "shell: tcsh not in {bash,zsh,fish}"},
      {{"status", "surplus"}, "The following argument was not expected: surplus"},
      {{"init", "model", "--like", "publishd"}, "--like: publishd not in {own,published}"},
      {{"evaluate", "--max-sequences", "0"},
       "--max-sequences: Value 0 not in range 1 to 1073741824"},
      // Behind a command "stop" is its argument.
      {{"explain", "stop"}, "Could not convert: --block = stop"}};
  for (const auto& [line, text] : all) {
    const Answer answer = run_line(line);
    EXPECT_EQ(answer.code, 2);
    EXPECT_EQ(answer.err,
              "hedgerow " + line[0] + ": " + text + "; see 'hedgerow " + line[0] + " --help'\n");
  }
}

// Journal, messages and --json could not hold it: `run` tokenized first and failed then.
TEST(Cli, InitAsksForAModelAndItsTextOrForARunAndItsVariant) {
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"init"}, {"init", "model"}, {"init", "--data", "text"}}) {
    const Answer answer = run_line(line);
    EXPECT_EQ(answer.code, 2);
    EXPECT_EQ(
        answer.err,
        "hedgerow init: a model and --data FILE, the text to learn from, are needed; or --from "
        "RUN --variant NAME\n");
  }
  EXPECT_THAT(run_line({"init", "model", "--data", "text", "--variant", "wide"}).err,
              ::testing::HasSubstr(
                  "--variant and --softmax-layers are of a run; name that with --from RUN"));
}

TEST(Cli, AnArgumentThatIsNotUtf8IsRefusedAtOnce) {
  const Answer answer = run_line({"run", "--run", "/tmp/r\xff"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(answer.err,
            "hedgerow: the argument \"/tmp/r\\ufffd\" is not UTF-8; convert it, or rename what it "
            "names\n");
}

TEST(Cli, ASeedBeyondSixtyFourBitsIsRefused) {
  const Answer answer = run_line({"generate", "--seed", "18446744073709551616", "It"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("from 0 to 18446744073709551615, found 18446744073709551616"),
            std::string::npos)
      << answer.err;
}

// Catches: a word that a command takes and its usage hides, or tells by a name that means nothing.
TEST(Cli, UsageShowsWhatMayStandWithoutAnOptionsName) {
  const auto usage_of = [](const char* command) {
    const std::string out = run_line({command, "--help"}).out;
    const std::size_t begin = out.find("Usage: ");
    return out.substr(begin, out.find('\n', begin) - begin);
  };
  EXPECT_EQ(usage_of("generate"), "Usage: hedgerow generate [OPTIONS] [prompt...]");
  EXPECT_EQ(usage_of("completion"), "Usage: hedgerow completion [OPTIONS] shell");
}

TEST(Cli, HelpOfACommandIsReachedBothWays) {
  EXPECT_EQ(run_line({"help", "plan"}).out, run_line({"plan", "--help"}).out);
  EXPECT_EQ(run_line({"help"}).out, run_line({"--help"}).out);
  EXPECT_EQ(run_line({"help"}).code, 0);
  const Answer mistyped = run_line({"help", "statsu"});
  EXPECT_EQ(mistyped.code, 2);
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
