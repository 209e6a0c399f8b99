#include "storage/base/random.hpp"

#include <gtest/gtest.h>

#include <set>

namespace hedgerow::storage {
namespace {

TEST(Random, AByteIsTwoDigitsAndEveryByteComesUp) {
  EXPECT_EQ(random_hex(0), "");
  const std::string many = random_hex(10'000);
  ASSERT_EQ(many.size(), 20'000U);
  EXPECT_EQ(many.find_first_not_of("0123456789abcdef"), std::string::npos);
  std::set<std::string> bytes;
  for (std::size_t at = 0; at < many.size(); at += 2) bytes.insert(many.substr(at, 2));
  EXPECT_EQ(bytes.size(), 256U) << "that one is missing has a probability of 1e-15";
}

TEST(Random, NoDrawIsLikeAnother) {
  std::set<std::string> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(random_hex(8));
  EXPECT_EQ(drawn.size(), 1000U);
}

}  // namespace
}  // namespace hedgerow::storage
