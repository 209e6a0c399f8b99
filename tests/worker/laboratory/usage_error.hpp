// What a call that is to be refused says.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {

// Empty where nothing is thrown; an error of another kind fails the test.
inline std::string usage_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace hedgerow::worker::laboratory
