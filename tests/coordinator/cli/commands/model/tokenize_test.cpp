#include "storage/files/file.hpp"
#include "storage/recipe/recipe.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/tiny_model.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

// make_tokens.py is replaced by a script of the test, run by /bin/sh in place of Python.
class Tokenize : public ::testing::Test {
 protected:
  Tokenize() {
    storage::Recipe recipe;
    recipe.model.path = scratch_ / "model";
    fs::create_directories(recipe.model.path);
    storage::DataSource source;
    source.path = scratch_ / "text.txt";
    recipe.data_transfer.sources = recipe.data_finetune.sources =
        recipe.data_evaluate.sources = {source};
    std::ofstream(scratch_ / "recipe.toml") << recipe.to_toml();
  }

  Answer run_with(const std::string& script,
                  const std::vector<std::string>& more = {},
                  const std::string& stage = "transfer") {
    std::ofstream(scratch_ / "make_tokens.py") << script;
    FakeConsole console;
    console.variables["HEDGEROW_PYTHON"] = "/bin/sh";
    console.variables["HEDGEROW_HUGGINGFACE"] = (scratch_ / "").string();
    std::vector<std::string> arguments{"tokenize",
                                       "--recipe",
                                       scratch_ / "recipe.toml",
                                       "--stage",
                                       stage,
                                       "--out",
                                       scratch_ / "out/t.h5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_line(arguments, console);
  }

  tests::TemporaryDirectory scratch_;
};

TEST_F(Tokenize, PassesTheResolvedSectionAndReportsWhatCameOut) {
  // $2 is the value of --section, $6 of --out.
  const Answer answer = run_with(
      "grep -q '\"held_out\":8192,' \"$2\" || exit 1\n"
      "echo '{\"event\":\"progress\",\"progress\":0.5,\"note\":\"1 of 2 documents\"}'\n"
      "echo "
      "'{\"event\":\"done\",\"stage\":\"transfer\",\"sequences\":12,\"num_train\":4,\"seq_len\":"
      "256}'"
      "\n",
      {"--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  ASSERT_EQ(answer.json.size(), 1U);
  EXPECT_EQ(answer.json[0]["stage"], "transfer");
  EXPECT_EQ(answer.json[0]["sequences"], 12);
  EXPECT_TRUE(fs::is_empty(scratch_ / "out")) << "the resolved section was left behind";
}

TEST_F(Tokenize, TheTextsOfEvaluateGetFilesBesideItsOwn) {
  storage::Recipe recipe = storage::Recipe::load(scratch_ / "recipe.toml");
  recipe.texts = {{.name = "wiki", .source = {.path = scratch_ / "wiki.txt"}}};
  std::ofstream(scratch_ / "recipe.toml") << recipe.to_toml();
  const std::string script = "echo \"$6\" $(grep -o '\"text\":\"[a-z]*\"' \"$2\") >>" +
                             (scratch_ / "asked").string() +
                             "; echo '{\"event\":\"done\",\"sequences\":3}'\n";
  const Answer answer = run_with(script, {"--json"}, "evaluate");
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.json[0]["texts"]["wiki"]["sequences"], 3);
  const std::string out = scratch_ / "out/t";
  EXPECT_EQ(storage::read_text(scratch_ / "asked"),
            out + ".h5 \"text\":\"\"\n" + out + "-wiki.h5 \"text\":\"wiki\"\n");
}

TEST_F(Tokenize, WhatTheReaderWarnsOfIsAWarning) {
  const Answer answer = run_with(
      "echo '{\"event\":\"warning\",\"text\":\"a.jsonl: the field q is not read\"}'\n"
      "echo '{\"event\":\"done\",\"sequences\":1}'\n");
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_NE(answer.err.find("a.jsonl: the field q is not read"), std::string::npos) << answer.err;
}

TEST_F(Tokenize, UsageErrorOfTheScriptIsTheCommandsOwn) {
  const Answer answer = run_with("echo 'error: text.txt: no such file' >&2; exit 2");
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(answer.err, "hedgerow tokenize: text.txt: no such file\n");
}

TEST_F(Tokenize, MissingPackageIsTheEnvironmentsFault) { EXPECT_EQ(run_with("exit 5").code, 5); }

TEST_F(Tokenize, ExistingFileIsNotOverwritten) {
  fs::create_directories(scratch_ / "out");
  std::ofstream(scratch_ / "out/t.h5") << "mine";
  EXPECT_EQ(run_with("exit 0").code, 2);
}

TEST_F(Tokenize, MissingInterpreterSaysWhatToInstall) {
  FakeConsole console;
  console.variables["HEDGEROW_CACHE"] = (scratch_ / "nowhere").string();
  const Answer answer = run_line({"tokenize",
                                  "--recipe",
                                  scratch_ / "recipe.toml",
                                  "--stage",
                                  "transfer",
                                  "--out",
                                  scratch_ / "t.h5"},
                                 console);
  EXPECT_EQ(answer.code, 5);
  EXPECT_NE(answer.err.find("deploy/setup"), std::string::npos) << answer.err;
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
