#include "storage/base/words.hpp"

#include <gtest/gtest.h>

namespace hedgerow::storage {
namespace {

TEST(Words, DistanceCountsInsertedDeletedAndReplacedCharacters) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("recipe", "recipe"), 0U);
  EXPECT_EQ(edit_distance("recip", "recipe"), 1U);
  EXPECT_EQ(edit_distance("finetune", "finetun"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
}

TEST(Words, TheNearestIsNamedAndAForeignWordHasNone) {
  const std::vector<std::string> words{"run", "status", "stop", "clean"};
  EXPECT_EQ(nearest_word("statsu", words), "status");
  EXPECT_EQ(nearest_word("stp", words), "stop");
  EXPECT_EQ(nearest_word("quantize", words), "");
  EXPECT_EQ(nearest_word("tcsh", {"bash"}), "") << "half of it is another word";
  EXPECT_EQ(nearest_word("xy", {"ab"}), "") << "two edits make any word of two letters";
}

}  // namespace
}  // namespace hedgerow::storage
