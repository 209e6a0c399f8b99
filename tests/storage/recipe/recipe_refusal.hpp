// A recipe that is complete, and what is said of one that is not.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "storage/base/error.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::storage {

// The smallest recipe that is complete; its keys stand in lines 1 to 5.
inline constexpr const char* kMinimal = R"([model]
path = "teacher"

[data.transfer]
sources = [{ path = "corpus.txt" }]
)";

inline Recipe minimal() { return Recipe::parse(kMinimal, "recipe.toml"); }

inline std::string refusal(const std::string& toml) {
  try {
    (void)Recipe::parse(toml, "recipe.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "accepted";
}

// From line 6 on.
inline std::string refusal_of(const std::string& rest) { return refusal(kMinimal + rest); }

}  // namespace hedgerow::storage
