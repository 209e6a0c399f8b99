// Recipes that are no TOML, or that toml++ cannot take.
#include <gmock/gmock.h>

#include <fstream>
#include <functional>

#include "recipe_refusal.hpp"
#include "storage/recipe/cluster_file.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

using ::testing::HasSubstr;

TEST(Recipe, ABrokenFileNamesTheLine) {
  EXPECT_THAT(refusal_of("[transfer\n"), HasSubstr("recipe.toml:6: "));
}

TEST(Recipe, AFileOfMoreThanAMegabyteIsNeitherARecipeNorAClusterFile) {
  const tests::TemporaryDirectory directory;
  const std::filesystem::path path = directory / "model.toml";
  std::ofstream(path) << kMinimal << std::string(1 << 20, '#');
  for (const auto& load : {std::function([&] { static_cast<void>(Recipe::load(path)); }),
                           std::function([&] { static_cast<void>(Cluster::load(path)); })}) {
    EXPECT_THAT(tests::refusal(load, ErrorKind::kUsage),
                ::testing::AllOf(HasSubstr(path.string()), HasSubstr("at most 1048576")));
  }
}

TEST(Recipe, LettersBeyondAsciiStandInStringsAndCommentsAlone) {
  const std::string fine = "\xEF\xBB\xBF" + std::string(kMinimal) +
                           "[evaluate]  # caf\xC3\xA9\n"
                           "prompts = [\"caf\xC3\xA9 \\\" caf\xC3\xA9\", 'caf\xC3\xA9 \\', "
                           "\"\"\"caf\xC3\xA9\n\"\"\"\", '''caf\xC3\xA9'\n''']\n";
  EXPECT_EQ(Recipe::parse(fine, "r").evaluate.prompts.size(), 4U);
  for (const char* wrong : {"[workers]\nbind = \xE2\x80\x9C*\xE2\x80\x9D\n",
                            "[workers]\nbind\xC2\xA0= \"*\"\n",
                            "[workers]\nbind = \"*\" caf\xC3\xA9\n",
                            "[workers]\nbind = '''*'''' \xE1\xE1\xE1\n",
                            "[workers]\nbind = \"*\n\xC3\xA9 = 1\n"}) {
    EXPECT_THAT(refusal_of(wrong), ::testing::ContainsRegex("recipe.toml:[78]: a letter, a space"));
  }
}

TEST(Recipe, ALetterBeyondAsciiBehindABackslashThatJoinsLinesIsNamed) {
  const auto prompt = [](const std::string& text) {
    return "[evaluate]\nprompts = [\"\"\"" + text + "\"\"\"]\n";
  };
  for (const char* joined :
       {"a \\\n  \xCF\x88", "a \\  \n\n\xCF\x88", "\\\n \\\n\xCF\x88", "\\\\\\\n\xCF\x88"}) {
    EXPECT_THAT(refusal_of(prompt(joined)), HasSubstr("recipe.toml:7: a letter beyond ASCII"));
  }
  for (const char* sound :
       {"a \\\n  b\xCF\x88", "\xCF\x88 \\\n b", "\\\\\n\xCF\x88", "\\n\xCF\x88"}) {
    const std::string recipe = std::string(kMinimal) + prompt(sound);
    EXPECT_EQ(Recipe::parse(recipe, "r").evaluate.prompts.size(), 1U) << sound;
  }
}

TEST(Recipe, AQuoteOrABracketInsideAWordIsNamed) {
  for (const char* wrong :
       {"bind = -7['caf\xC3\xA9']", "bind = .'caf\xC3\xA9'", "bind\" = 1", "a{b = 1"})
    EXPECT_THAT(refusal_of("[workers]\n" + std::string(wrong) + "\n"),
                ::testing::ContainsRegex("recipe.toml:7: a .*stands inside a word"));
}

TEST(Recipe, ASecondEqualsSignBehindAValueIsNamed) {
  for (const char* wrong : {"prompts = -e=[\"caf\xC3\xA9\"]",
                            "prompts = [1, -e=[\"caf\xC3\xA9\"]]",
                            "prompts = [{a = 1, b = -e=[\"caf\xC3\xA9\"]}]",
                            "prompts = [{a = 1}, -e=[\"caf\xC3\xA9\"]]",
                            "prompts = [{a = 1, b = 2}=\"caf\xC3\xA9\"]"}) {
    EXPECT_THAT(refusal_of("[evaluate]\n" + std::string(wrong) + "\n"),
                ::testing::ContainsRegex("recipe.toml:7: a (second )?= in"));
  }
  EXPECT_THAT(refusal_of("[evaluate]\nprompts = [\"a\"\nmax_sequences = 3\n"),
              HasSubstr("recipe.toml:8: a = inside a list or a table; is the bracket"));
  const std::string fine =
      std::string(kMinimal) +
      "[evaluate]\nprompts = [ # = =\n  \"a = b\", 'c = d', \"\"\"e\n= =\"\"\",\n]"
      "\nmax_sequences = 3\n";
  EXPECT_EQ(Recipe::parse(fine, "r").evaluate.prompts.size(), 3U);
  EXPECT_THAT(refusal_of("[evaluate]\nprompts = [{a = 1, b = {c = 2, d = 3}, e = 4}]\n"),
              ::testing::Not(::testing::ContainsRegex("a (second )?= in")))
      << "tables in braces have one each";
}

TEST(Recipe, KeysOfManyPartsAreRefusedInsteadOfEndingTheStack) {
  std::string parts = "a";
  for (int i = 0; i < 300'000; ++i) parts += ".a";
  for (const std::string& text :
       {"[" + parts + "]\n", parts + " = 1\n", "x = { " + parts + " = 1 }\n"}) {
    EXPECT_EQ(refusal(text),
              "recipe.toml:1: more than 16 points on a line; no key has so many parts");
  }
  for (const char* opening : {"[", "{ a = "}) {
    std::string nested = "x = ";
    for (int i = 0; i < 100'000; ++i) nested += opening;
    EXPECT_THAT(refusal(nested), HasSubstr("recipe.toml:1: "));
  }
}

TEST(Recipe, AKeyThatBeginsWithAControlCharacterIsAnError) {
  EXPECT_THAT(refusal(std::string("[\0\0model]\npath = \"t\"\n", 21)),
              HasSubstr("recipe.toml:1: "));
}

}  // namespace
}  // namespace hedgerow::storage
