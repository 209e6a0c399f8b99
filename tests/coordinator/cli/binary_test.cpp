// The binary itself, as a login node meets it.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "coordinator/cli/programs/programs.hpp"

namespace hedgerow::coordinator::cli {
namespace {

struct Ended {
  int code = 0;
  std::string out;  // stdout and stderr
};

Ended shell(const std::string& command) {
  Ended ended;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::vector<char> buffer(4096);
  while (const std::size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ended.out.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  ended.code = WEXITSTATUS(status);
  return ended;
}

std::string binary() { return own_binary().parent_path() / "hedgerow"; }

TEST(Binary, LoadsNoLibTorchAndNoMpi) {
  const Ended ended = shell("ldd " + binary());
  ASSERT_EQ(ended.code, 0) << ended.out;
  for (const char* library : {"libtorch", "libc10", "libmpi", "libcudart", "libpython"}) {
    EXPECT_EQ(ended.out.find(library), std::string::npos) << library << " is loaded:\n"
                                                          << ended.out;
  }
}

TEST(Binary, PassesItsExitCodeOn) {
  EXPECT_EQ(shell(binary() + " --version").code, 0);
  EXPECT_EQ(shell(binary() + " status").code, 2);
  EXPECT_EQ(shell("HEDGEROW_PYTHON=/no/such/python " + binary() + " generate --model . x").code, 5);
}

TEST(Binary, EndsQuietlyWhenItsReaderGoesAway) {
  const Ended ended = shell(binary() + " completion zsh | head -1");
  EXPECT_EQ(ended.out, "# source <(hedgerow completion zsh)\n");
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
