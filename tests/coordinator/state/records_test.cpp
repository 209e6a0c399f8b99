// The two types that keep a hundred thousand records small.
#include <gtest/gtest.h>

#include <string>

#include "coordinator/state/name.hpp"
#include "coordinator/state/rare.hpp"

namespace hedgerow::coordinator {
namespace {

TEST(Name, OfOneTextIsOneAndIsComparedWithTexts) {
  const Name name(std::string("worker-") + "1"), again("worker-1"), other("worker-2");
  EXPECT_EQ(name, again);
  EXPECT_EQ(&name.text(), &again.text()) << "kept twice";
  EXPECT_NE(name, other);
  EXPECT_TRUE(name == std::string("worker-1"));
  EXPECT_TRUE(Name().empty());
  EXPECT_EQ(Name(), Name(""));
}

TEST(Rare, IsCopiedAndComparedAsItsValue) {
  Rare<std::string> none, one;
  one = std::string("a");
  Rare<std::string> copy = one;
  EXPECT_EQ(copy, one);
  EXPECT_NE(copy, none);
  copy = std::string("b");
  EXPECT_EQ(*one, "a") << "the copy shares its value";
  EXPECT_NE(copy, one);
  copy = *&copy;
  EXPECT_EQ(*copy, "b");
  copy.reset();
  EXPECT_EQ(copy, none);
  EXPECT_FALSE(copy);
  one = none;
  EXPECT_FALSE(one);
}

}  // namespace
}  // namespace hedgerow::coordinator
