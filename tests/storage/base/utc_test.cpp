#include "storage/base/utc.hpp"

#include <gtest/gtest.h>

namespace hedgerow::storage {
namespace {

TEST(Utc, ReadsWhatItWrites) {
  EXPECT_NEAR(seconds_of_utc(utc_now()), wall_seconds(), 2.0);
  EXPECT_DOUBLE_EQ(seconds_of_utc("1970-01-02T00:00:01.500Z"), 86401.5);
  EXPECT_EQ(seconds_of_utc("yesterday"), 0.0);
}

}  // namespace
}  // namespace hedgerow::storage
