// What signals mean to a command that runs long.
#include "coordinator/cli/terminal/interrupt.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace hedgerow::coordinator::cli {
namespace {

TEST(Interrupt, ABatchSystemsWordsAreOneRequestHoweverOftenTheyCome) {
  const InterruptScope scope;
  EXPECT_FALSE(is_interrupted());
  for (const int number : {SIGUSR1, SIGTERM, SIGTERM, SIGUSR1}) ASSERT_EQ(::raise(number), 0);
  EXPECT_EQ(num_interrupts().load(), 1) << "two would end it without waiting for checkpoints";
}

TEST(Interrupt, ACtrlCAfterTheFirstRequestIsTheSecond) {
  const InterruptScope scope;
  ::raise(SIGTERM);
  ::raise(SIGINT);
  EXPECT_EQ(num_interrupts().load(), 2);
}

TEST(Interrupt, WithoutAReaderWritingFailsAndTheProcessGoesOn) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  {
    const ClosedPipeScope scope;
    EXPECT_EQ(::write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  }
  EXPECT_EXIT((void)::write(ends[1], "x", 1), testing::KilledBySignal(SIGPIPE), "");
  ::close(ends[1]);
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
