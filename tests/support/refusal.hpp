// What an action that must not succeed says.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "storage/base/error.hpp"

namespace hedgerow::tests {

// The text of the storage::Error of this kind that the action throws, "(accepted)" if it throws
// none.
inline std::string refusal(const std::function<void()>& action, storage::ErrorKind kind) {
  try {
    action();
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "(accepted)";
}

}  // namespace hedgerow::tests
