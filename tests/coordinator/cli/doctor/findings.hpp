// One of doctor's findings by the name of its check.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/cli/doctor/doctor.hpp"

namespace hedgerow::coordinator::cli {

// Fails without it, and where a finding on the way has no fix although it is not fine.
inline Finding named(const std::vector<Finding>& findings, const std::string& check) {
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.fix.empty(), finding.level == Level::kOk)
        << finding.check << ": " << finding.found << ": " << finding.fix;
    if (finding.check == check) return finding;
  }
  ADD_FAILURE() << "no finding is called " << check;
  return {};
}

}  // namespace hedgerow::coordinator::cli
