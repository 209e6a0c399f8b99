#include "coordinator/wire/coordinator_file.hpp"

#include <gtest/gtest.h>

namespace hedgerow::wire {
namespace {

TEST(CoordinatorFile, ThePortIsWhatAnEndpointEndsWithAndNoneIsZero) {
  EXPECT_EQ(port_of("tcp://127.0.0.1:40123"), 40123);
  EXPECT_EQ(port_of("tcp://[fe80::1]:7400"), 7400);
  for (const char* none : {"",
                           "tcp",
                           "tcp://node-1",
                           "tcp://node-1:",
                           "tcp://node-1:*",
                           "tcp://node-1:70000",
                           "tcp://node-1:-1",
                           "tcp://node-1:7400x"}) {
    EXPECT_EQ(port_of(none), 0) << none;
  }
}

}  // namespace
}  // namespace hedgerow::wire
