#include "storage/recipe/tokens_section.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "recipe_refusal.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

using ::testing::HasSubstr;

std::string refused_section(const Recipe& recipe, const TokensOf& of) {
  try {
    return tokens_section(recipe, of).dump();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
}

TEST(TokensSection, HasEveryKeyOfTheSectionWithDefaultsFilledIn) {
  Recipe recipe = minimal();
  recipe.data_finetune.add_bos = AddBos::kNo;
  recipe.transfer.max_steps = 120 / recipe.transfer.sequences_per_step;
  EXPECT_EQ(tokens_section(recipe, DataStage::kTransfer), nlohmann::json::parse(R"({
              "stage": "transfer", "text": "", "keep": "both", "held_out": 8192,
              "sources": [{"path": "corpus.txt", "format": "text", "template": "",
                           "label_mask": "all", "weight": 0.0}],
              "seq_len": 1024, "validation_sequences": 8, "split": "documents",
              "max_sequences": 120, "add_bos": "auto", "eos_token_id": -1})"));
  EXPECT_EQ(tokens_section(recipe, DataStage::kFinetune)["add_bos"], false);
}

TEST(TokensSection, TheTextIsReadAsFarAsTheStagesWithOneSectionVisit) {
  Recipe recipe = minimal();
  recipe.transfer.max_steps = 10;
  recipe.finetune.max_steps = 25;
  recipe.transfer.sequences_per_step = recipe.finetune.sequences_per_step = 4;
  const auto limit = [&](DataStage stage) {
    return tokens_section(recipe, stage)["max_sequences"];
  };
  EXPECT_EQ(shares_tokens_of(recipe, DataStage::kFinetune), DataStage::kTransfer);
  EXPECT_EQ(limit(DataStage::kTransfer), 100);
  EXPECT_EQ(limit(DataStage::kFinetune), 100);
  recipe.data_finetune.seq_len = 512;
  EXPECT_EQ(shares_tokens_of(recipe, DataStage::kFinetune), std::nullopt);
  EXPECT_EQ(limit(DataStage::kTransfer), 40);
  recipe.data_transfer.max_sequences = 30;
  EXPECT_EQ(limit(DataStage::kTransfer), 30);
}

TEST(TokensSection, StagesWithTheSameTextHoldOutTheMostThatOneOfThemAsksFor) {
  Recipe recipe = minimal();
  recipe.data_finetune.validation_sequences = 0;
  recipe.data_evaluate.seq_len = 2048;
  recipe.data_evaluate.validation_sequences = 6;
  for (const DataStage stage : {DataStage::kTransfer, DataStage::kFinetune, DataStage::kEvaluate})
    EXPECT_EQ(tokens_section(recipe, stage)["held_out"], 6 * 2048) << to_string(stage);
  EXPECT_EQ(tokens_section(recipe, DataStage::kEvaluate)["keep"], "validation");
  recipe.data_evaluate.sources[0].path = "other.txt";
  EXPECT_EQ(tokens_section(recipe, DataStage::kTransfer)["held_out"], 8 * 1024);
}

TEST(TokensSection, AFinetuneThatIsDisabledHoldsOutNothingUnlessItsOwnTokensAreAskedFor) {
  Recipe recipe = minimal();
  recipe.data_finetune.validation_sequences = 20;
  recipe.finetune.enabled = false;
  EXPECT_EQ(tokens_section(recipe, DataStage::kTransfer)["held_out"], 8 * 1024);
  EXPECT_EQ(tokens_section(recipe, DataStage::kFinetune)["held_out"], 20 * 1024);
}

TEST(TokensSection, ANamedTextAndATextOfEvaluateAloneAreKeptWhole) {
  Recipe recipe = minimal();
  recipe.data_evaluate.max_sequences = 3;
  recipe.texts = {{.name = "wiki", .source = {.path = "w.json", .format = "records"}}};
  const nlohmann::json text = tokens_section(recipe, {DataStage::kEvaluate, "wiki"});
  EXPECT_EQ(text["text"], "wiki");
  EXPECT_EQ(text["keep"], "all");
  EXPECT_EQ(text["held_out"], 0);
  EXPECT_EQ(text["validation_sequences"], 0);
  EXPECT_EQ(text["max_sequences"], 3);
  ASSERT_EQ(text["sources"].size(), 1U);
  EXPECT_EQ(text["sources"][0]["path"], "w.json");
  recipe.data_evaluate.sources = {{.path = "other.txt"}};
  recipe.data_evaluate.validation_sequences = 0;
  EXPECT_EQ(tokens_section(recipe, DataStage::kEvaluate)["keep"], "all");
  EXPECT_EQ(tokens_section(recipe, DataStage::kEvaluate)["held_out"], 0);
}

// validate() compares the paths as they are written, and accepts each of these.
TEST(TokensSection, ATextThatStagesShareThroughALinkIsRefusedWithThatText) {
  const tests::TemporaryDirectory scratch;
  const std::string text = scratch / "a.txt", link = scratch / "link.txt";
  write_atomically(text, "words");
  std::filesystem::create_symlink(text, link);
  Recipe recipe = minimal();
  for (DataSection* data : {&recipe.data_transfer, &recipe.data_finetune, &recipe.data_evaluate})
    data->sources = {{.path = text}};

  Recipe linked = recipe;
  linked.data_evaluate.sources = {{.path = link}};
  linked.validate("recipe.toml");
  EXPECT_EQ(tokens_section(linked, DataStage::kEvaluate)["held_out"], 8 * 1024) << "one list";

  linked.data_evaluate.sources.push_back({.path = scratch / "b.txt"});
  linked.validate("recipe.toml");
  EXPECT_THAT(refused_section(linked, DataStage::kTransfer),
              HasSubstr("the recipe: data.evaluate.sources names " + link +
                        ", and so does data.transfer.sources, but the two do not hold out"));

  linked = recipe;
  linked.data_evaluate.sources = {{.path = link}};
  linked.data_evaluate.validation_sequences = 0;
  linked.validate("recipe.toml");
  EXPECT_THAT(refused_section(linked, DataStage::kTransfer),
              HasSubstr("= 0 evaluates all of " + link + ", which data.transfer learns"));

  linked = recipe;
  for (DataSection* data : {&linked.data_transfer, &linked.data_finetune, &linked.data_evaluate})
    data->sources.push_back({.path = link});
  linked.validate("recipe.toml");
  EXPECT_THAT(refused_section(linked, DataStage::kTransfer),
              HasSubstr("data.transfer.sources names " + text + " twice"));

  linked = recipe;
  linked.texts = {{.name = "other", .source = {.path = link}}};
  linked.validate("recipe.toml");
  EXPECT_THAT(
      refused_section(linked, {DataStage::kEvaluate, "other"}),
      HasSubstr("data.evaluate.texts[0].path names " + link + ", which data.transfer learns"));
}

}  // namespace
}  // namespace hedgerow::storage
