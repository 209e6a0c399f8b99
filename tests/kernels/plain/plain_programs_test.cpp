// The three programs of kernels/plain/examples print the numbers of the paper's.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace {

std::string output_of(const std::string& program) {
  FILE* pipe = popen((HEDGEROW_PLAIN_PROGRAMS "/" + program).c_str(), "r");
  if (pipe == nullptr) return "cannot start " + program;
  std::string output;
  std::array<char, 256> bytes{};
  for (std::size_t count; (count = fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
    output.append(bytes.data(), count);
  }
  const int status = pclose(pipe);
  return status == 0 ? output : output + program + " ended with status " + std::to_string(status);
}

TEST(PlainPrograms, SoftmaxPrintsTheNumbersOfThePaper) {
  EXPECT_EQ(output_of("plain_softmax"),
            "0.502382 0.532382\n"
            "0.504546 0.534546\n"
            "0.506710 0.536710\n"
            "0.508874 0.538874\n");
}

TEST(PlainPrograms, BidirectionalLinearAttentionPrintsTheNumbersOfThePaper) {
  EXPECT_EQ(output_of("plain_bidirectional"),
            "0.297796 0.347796 0.397796\n"
            "0.297430 0.347430 0.397430\n"
            "0.297147 0.347147 0.397147\n"
            "0.296963 0.346963 0.396963\n"
            "0.296891 0.346891 0.396891\n");
}

TEST(PlainPrograms, StreamingPrintsTheNumbersOfThePaper) {
  EXPECT_EQ(output_of("plain_streaming"),
            "0.050000 0.100000 0.150000\n"
            "0.075016 0.125016 0.175016\n"
            "0.100023 0.150023 0.200023\n"
            "0.124979 0.174979 0.224979\n"
            "0.149851 0.199851 0.249851\n"
            "0.174623 0.224623 0.274623\n");
}

}  // namespace
