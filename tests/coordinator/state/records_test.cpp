// The two types that keep a hundred thousand records small.
#include <gtest/gtest.h>

#include <string>

#include "coordinator/state/boxed_optional.hpp"
#include "coordinator/state/interned_string.hpp"

namespace hedgerow::coordinator {
namespace {

TEST(InternedString, OfOneTextIsOneAndIsComparedWithTexts) {
  const InternedString name(std::string("worker-") + "1"), again("worker-1"), other("worker-2");
  EXPECT_EQ(name, again);
  EXPECT_EQ(&name.text(), &again.text()) << "kept twice";
  EXPECT_NE(name, other);
  EXPECT_TRUE(name == std::string("worker-1"));
  EXPECT_TRUE(InternedString().empty());
  EXPECT_EQ(InternedString(), InternedString(""));
}

TEST(BoxedOptional, IsCopiedAndComparedAsItsValue) {
  BoxedOptional<std::string> none, one;
  one = std::string("a");
  BoxedOptional<std::string> copy = one;
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
