#include <sys/stat.h>

#include <algorithm>

#include "storage/files/file.hpp"
#include "storage/recipe/recipe.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/tiny_model.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

class Init : public ::testing::Test {
 protected:
  Init() {
    write_tiny_model(scratch_ / "model");
    std::ofstream(scratch_ / "text.txt") << "some text\n";
    look_answers(R"(echo '{"event":"source","format":"text","what":"plain text"}')");
  }

  // look_at_source.py is replaced by a script, run by /bin/sh in place of Python; its own test is
  // tests/huggingface/sources_test.py.
  void look_answers(const std::string& script) const {
    std::ofstream(scratch_ / "look_at_source.py") << script << "\n";
  }
  [[nodiscard]] Answer run_line(const std::vector<std::string>& arguments) const {
    FakeConsole console;
    console.variables["HEDGEROW_PYTHON"] = "/bin/sh";
    console.variables["HEDGEROW_HUGGINGFACE"] = (scratch_ / "").string();
    return cli::run_line(arguments, console);
  }

  [[nodiscard]] std::vector<std::string> line(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"init",
                                       scratch_ / "model",
                                       "--data",
                                       scratch_ / "text.txt",
                                       "--out",
                                       scratch_ / "recipe.toml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  tests::TemporaryDirectory scratch_;
};

TEST_F(Init, WritesARecipeThatLoadsAndFitsTheModel) {
  const Answer answer = run_line(line());
  ASSERT_EQ(answer.code, 0) << answer.err;
  const storage::Recipe recipe = storage::Recipe::load(scratch_ / "recipe.toml");
  EXPECT_EQ(recipe.model.path, (scratch_ / "model").string());
  EXPECT_EQ(recipe.attention.feature_dim, 16) << "twice the head dimension of the model";
  EXPECT_EQ(recipe.data_transfer.seq_len, 256) << "no more than the model's positions";
  EXPECT_EQ(recipe.data_transfer.sources.at(0).path, (scratch_ / "text.txt").string());
  EXPECT_EQ(recipe.attention.start, storage::FeatureMapStart::kOrthogonal);
  EXPECT_EQ(recipe.attention.window, storage::WindowLayout::kTerraced);
  const std::string text = storage::read_text(scratch_ / "recipe.toml");
  for (const char* line : {"\nnum_sinks = 4 ", "\nkey_maps = \"kv_head\" "})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

TEST_F(Init, LikePublishedIsTheReferenceRecipeForAnotherModel) {
  const Answer answer = run_line(line({"--like", "published"}));
  ASSERT_EQ(answer.code, 0) << answer.err;
  const storage::Recipe recipe = storage::Recipe::load(scratch_ / "recipe.toml");
  storage::Recipe reference = storage::Recipe::load(std::string(HEDGEROW_SOURCE_DIR) +
                                                    "/deploy/recipes/smollm2_reference.toml");
  EXPECT_EQ(recipe.transfer.sequences_per_step, 8);
  EXPECT_EQ(recipe.finetune.sequences_per_step, 8);
  reference.attention.feature_dim = 8;  // the head dimension of the model
  reference.transfer.sequences_per_step = 8;
  reference.finetune.sequences_per_step = 8;
  reference.finetune.top_k = recipe.finetune.top_k;  // the vocabulary's size; ce does not use it
  EXPECT_EQ(recipe.attention, reference.attention);
  EXPECT_EQ(recipe.transfer, reference.transfer);
  EXPECT_EQ(recipe.finetune, reference.finetune);
  std::ofstream(scratch_ / "text.txt") << std::string(256 * 12, 'x');
  const Answer plan = run_line({"plan", "--recipe", scratch_ / "recipe.toml"});
  EXPECT_EQ(plan.code, 0) << plan.out << plan.err;
}

TEST_F(Init, TokensAreRoundedUpToWholeStepsOfEachStageAndSaid) {
  struct Case {
    std::string tokens, like;
    int steps;
  };
  // A step of our own is 4 sequences of 256 tokens, one of the published method 8.
  for (const Case& one : {Case{"1", "own", 1},
                          Case{"1024", "own", 1},
                          Case{"1025", "own", 2},
                          Case{"5K", "own", 5},
                          Case{"20M", "own", 19532},
                          Case{"20M", "published", 9766},
                          Case{"1G", "own", 976563}}) {
    fs::remove(scratch_ / "recipe.toml");
    const Answer answer = run_line(line({"--tokens", one.tokens, "--like", one.like}));
    ASSERT_EQ(answer.code, 0) << answer.err;
    const storage::Recipe recipe = storage::Recipe::load(scratch_ / "recipe.toml");
    EXPECT_EQ(recipe.transfer.max_steps, one.steps) << one.tokens;
    EXPECT_EQ(recipe.finetune.max_steps, one.steps) << one.tokens;
    const int sequences = one.like == "own" ? 4 : 8;
    for (const char* field : {"transfer.max_steps", "finetune.max_steps"}) {
      const std::string said = std::string("\n") + field + " = " + std::to_string(one.steps) +
                               ": " + std::to_string(one.steps * sequences * 256) +
                               " tokens, in steps of " + std::to_string(sequences) + " x 256\n";
      EXPECT_NE(answer.out.find(said), std::string::npos) << answer.out;
    }
  }
}

TEST_F(Init, TokensThatAreNoNumberAreRefusedWithWhatIsExpected) {
  for (const std::string text :
       {"0", "M", "-5", "20m", "20 M", "20MB", "1.5G", "ten", "1001G", "99999999999999999999"}) {
    const Answer answer = run_line(line({"--tokens=" + text}));
    EXPECT_EQ(answer.code, 2) << text;
    EXPECT_NE(answer.err.find("--tokens " + text + ": expected how many tokens each stage visits"),
              std::string::npos)
        << answer.err;
    EXPECT_FALSE(fs::exists(scratch_ / "recipe.toml")) << text;
  }
  const Answer steps = run_line(line({"--tokens", "1000G", "--like", "own"}));
  EXPECT_EQ(steps.code, 0) << steps.err;
}

// Catches: a recipe of init's own that plan then refuses.
TEST_F(Init, ATeachersOwnWindowLimitsTheSequencesOrIsSaidToBeTooShort) {
  const auto write_config = [this](int sliding_window) {
    nlohmann::json config = nlohmann::json::parse(kTinyConfig);
    config["architectures"] = {"MistralForCausalLM"};
    config["model_type"] = "mistral";
    config["sliding_window"] = sliding_window;
    std::ofstream(scratch_ / "model/config.json") << config.dump();
  };
  write_config(128);
  const Answer none = run_line(line());
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("model/config.json: sliding_window = 128 is the longest "
                          "data.transfer.seq_len, but with attention.window_size = 64"),
            std::string::npos)
      << none.err;
  EXPECT_FALSE(fs::exists(scratch_ / "recipe.toml"));
  write_config(129);
  ASSERT_EQ(run_line(line()).code, 0);
  EXPECT_EQ(storage::Recipe::load(scratch_ / "recipe.toml").data_evaluate.seq_len, 129);
  std::ofstream(scratch_ / "text.txt") << std::string(129 * 9, 'x');
  const Answer plan = run_line({"plan", "--recipe", scratch_ / "recipe.toml"});
  EXPECT_EQ(plan.code, 0) << plan.out << plan.err;
}

TEST_F(Init, PathsThatCannotBeAreSaidWithWhatToDo) {
  const auto refusal = [this](const std::string& option, const std::string& path) {
    auto arguments = line();
    *(std::find(arguments.begin(), arguments.end(), option) + 1) = path;
    const Answer answer = run_line(arguments);
    EXPECT_EQ(answer.code, 2) << answer.err;
    return answer.err;
  };
  EXPECT_NE(refusal("--data", scratch_ / "model").find("is a directory"), std::string::npos);
  EXPECT_NE(refusal("--data", scratch_ / "none.txt").find("no such file"), std::string::npos);
  EXPECT_NE(refusal("--data", "/dev/zero").find("is a device; name a regular file"),
            std::string::npos);
  EXPECT_NE(refusal("--out", scratch_ / "none" / "r.toml").find("does not exist; make it"),
            std::string::npos);
}

// Catches: a model whose tokenizer the run waits for after init and plan accepted it.
TEST_F(Init, AModelWithAFifoIsRefusedAlsoWhereInitDoesNotReadIt) {
  ASSERT_EQ(::mkfifo((scratch_ / "model/tokenizer.json").c_str(), 0600), 0);
  const Answer answer = run_line(line());
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("tokenizer.json: is a FIFO; name a regular file"), std::string::npos)
      << answer.err;
}

TEST_F(Init, WhatTheReaderSaysOfTheTextGoesIntoTheRecipe) {
  look_answers(
      R"(echo "$@" >"$(dirname "$0")/words"
echo '{"event":"source","format":"jsonl","template":"{a}","what":"JSON records","unused":["b"]}')");
  const Answer answer = run_line(line({"--format", "jsonl", "--template", "{a}"}));
  ASSERT_EQ(answer.code, 0) << answer.err;
  const auto source = storage::Recipe::load(scratch_ / "recipe.toml").data_transfer.sources.at(0);
  EXPECT_EQ(source.format + "|" + source.template_, "jsonl|{a}");
  EXPECT_NE(answer.out.find("text.txt: JSON records, read as format \"jsonl\""), std::string::npos)
      << answer.out;
  EXPECT_NE(answer.err.find("the field 'b' holds text that is not learned"), std::string::npos)
      << answer.err;
  EXPECT_EQ(storage::read_text(scratch_ / "words"),
            (scratch_ / "text.txt").string() + " --format jsonl --template {a}\n");
}

TEST_F(Init, ATextThatNoReaderTakesIsTheReadersOneLine) {
  look_answers("echo 'error: text.txt: holds a list of strings' >&2; exit 2");
  const Answer answer = run_line(line());
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(answer.err.substr(answer.err.find("hedgerow init:")),
            "hedgerow init: text.txt: holds a list of strings\n");
  EXPECT_FALSE(fs::exists(scratch_ / "recipe.toml"));
}

TEST_F(Init, OfAModelItsConfigurationWillDo) {
  fs::remove(scratch_ / "model/model.safetensors");
  const Answer answer = run_line(line());
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_NE((answer.out + answer.err).find("the weights were not seen"), std::string::npos)
      << answer.out << answer.err;
}

TEST_F(Init, WritesNoMoreThanAPersonWouldChange) {
  ASSERT_EQ(run_line(line()).code, 0);
  EXPECT_EQ(storage::Recipe::load(scratch_ / "recipe.toml").plan.layers_per_block, 0)
      << "the plan chooses";
  EXPECT_EQ(storage::read_text(scratch_ / "recipe.toml").find("made_by"), std::string::npos)
      << "no build has resolved it";
}

TEST_F(Init, NeverOverwrites) {
  ASSERT_EQ(run_line(line()).code, 0);
  std::ofstream(scratch_ / "recipe.toml") << "# mine\n";
  const Answer answer = run_line(line({"--json"}));
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(fs::file_size(scratch_ / "recipe.toml"), 7U) << "the file was touched";
  ASSERT_EQ(answer.json.size(), 1U);
  EXPECT_NE(answer.json[0]["error"]["message"].get<std::string>().find("not overwritten"),
            std::string::npos);
}

// Catches: a recipe for a text that holds nothing.
TEST_F(Init, AnEmptyTextIsRefusedAndNoRecipeIsWritten) {
  std::ofstream(scratch_ / "text.txt", std::ios::trunc).close();
  const Answer answer = run_line(line());
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("text.txt: is empty; --data takes the text to learn from"),
            std::string::npos)
      << answer.err;
  EXPECT_FALSE(fs::exists(scratch_ / "recipe.toml"));
}

TEST_F(Init, MissingTextAndForeignModelAreOneUsageErrorEach) {
  fs::remove(scratch_ / "text.txt");
  EXPECT_EQ(run_line(line()).code, 2);
  std::ofstream(scratch_ / "text.txt") << "text";
  std::ofstream(scratch_ / "model/config.json")
      << R"({"architectures": ["BertModel"], "model_type": "bert"})";
  const Answer answer = run_line(line());
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("BertModel"), std::string::npos) << answer.err;
  EXPECT_FALSE(fs::exists(scratch_ / "recipe.toml"));
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
