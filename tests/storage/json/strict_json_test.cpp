#include "storage/json/strict_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/error.hpp"

namespace hedgerow::storage {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

template <typename T>
std::string refusal(const json& value) {
  try {
    std::ignore = integer_of<T>({{"key", value}}, "key");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    return error.what();
  }
  return "(accepted)";
}

TEST(StrictJson, AWholeNumberIsTakenIfItsTypeHoldsIt) {
  EXPECT_EQ(integer_of<int>({{"key", -7}}, "key"), -7);
  EXPECT_EQ(integer_of<std::uint64_t>({{"key", 18446744073709551615U}}, "key"),
            18446744073709551615U);
  for (const json& value : std::initializer_list<json>{2147483648,
                                                       -2147483649,
                                                       18446744073709551615U,
                                                       1.0,
                                                       1e300,
                                                       "1",
                                                       nullptr,
                                                       true,
                                                       json::array()})
    EXPECT_THAT(refusal<int>(value), HasSubstr("'key' is ")) << value;
  EXPECT_THAT(refusal<std::uint64_t>(-1), HasSubstr("'key' is -1, expected a whole number"));
}

TEST(StrictJson, DepthCountsBracketsOutsideStringsAlone) {
  EXPECT_FALSE(is_nested_deeper(R"({"a":[[1]],"b":[]})", 3));
  EXPECT_TRUE(is_nested_deeper(R"({"a":[[1]],"b":[]})", 2));
  EXPECT_FALSE(is_nested_deeper(R"({"[[[[":"\"[[[[\\"})", 1));
  EXPECT_FALSE(is_nested_deeper("]]]]", 1));
  EXPECT_TRUE(is_nested_deeper(std::string(1'000'000, '['), 100));
}

}  // namespace
}  // namespace hedgerow::storage
