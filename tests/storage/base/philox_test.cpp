#include "storage/base/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace hedgerow::storage {
namespace {

TEST(Philox, EqualsTheAuthorsKnownAnswers) {
  // The kat_vectors of Random123 for philox4x32-10.
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamsOfDifferentKeysDiffer) {
  std::set<double> first_values;
  for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      first_values.insert(PhiloxStream(seed, i, 9, 9).uniform());
      first_values.insert(PhiloxStream(seed, 9, i, 9).uniform());
      first_values.insert(PhiloxStream(seed, 9, 9, i).uniform());
    }
  }
  EXPECT_EQ(first_values.size(), 27U);
}

TEST(Philox, ADrawDependsOnNothingButKeyAndIndex) {
  PhiloxStream a(5, 1, 2, 3);
  PhiloxStream other(6, 1, 2, 3);
  PhiloxStream b(5, 1, 2, 3);
  for (int i = 0; i < 100; ++i) {
    (void)other.uniform();
    EXPECT_EQ(a.uniform(), b.uniform());
  }
}

TEST(Philox, UniformAndNormalHaveTheirMoments) {
  constexpr int kDraws = 20'000;
  PhiloxStream uniform(1, 0, 0, 0);
  PhiloxStream normal(2, 0, 0, 0);
  double mean = 0.0;
  double normal_mean = 0.0;
  double normal_square = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    mean += u / kDraws;
    const double z = normal.normal();
    ASSERT_TRUE(std::isfinite(z));
    normal_mean += z / kDraws;
    normal_square += z * z / kDraws;
  }
  EXPECT_NEAR(mean, 0.5, 0.01);
  EXPECT_NEAR(normal_mean, 0.0, 0.03);
  EXPECT_NEAR(normal_square, 1.0, 0.05);
}

}  // namespace
}  // namespace hedgerow::storage
