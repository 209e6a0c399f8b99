#include "storage/base/build_info.hpp"

#include <gtest/gtest.h>

namespace hedgerow::storage {
namespace {

TEST(BuildInfo, NamesAVersionAndACommit) {
  EXPECT_FALSE(version().empty());
  EXPECT_FALSE(git_hash().empty());
  EXPECT_EQ(version().find('@'), std::string::npos) << "the template was not filled in";
  EXPECT_EQ(build(), version() + "+" + git_hash());
}

}  // namespace
}  // namespace hedgerow::storage
