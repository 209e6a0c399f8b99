// The plain header's promise that memory is taken before tokens are walked: the number of
// allocations does not depend on their number.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "kernels/plain/attention.hpp"

namespace {
std::size_t num_allocations = 0;  // tests are one thread
}

// Not inlined: GCC takes new and free for a mismatch where it sees both.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace hedgerow::plain {
namespace {

using X = Rows<const double>;  // [T, 4]
using Y = Rows<double>;        // [T, 4]
using Call = std::function<void(X, Y)>;

std::size_t allocations_of(const Call& call, std::size_t T) {
  const std::vector<double> x(T * 4, 0.5);
  std::vector<double> y(T * 4);
  const std::size_t before = num_allocations;
  call({x, 4}, {y, 4});
  return num_allocations - before;
}

TEST(PlainMemory, NoFunctionAllocatesForEachToken) {
  const std::vector<double> weight(16, 0.25), bias(4);
  const std::vector<Call> calls = {
      [](X x, Y y) { softmax_attention(Mask::kCausal, x, x, x, y); },
      [](X x, Y y) { linear_attention(Mask::kCausal, x, x, x, y); },
      [](X x, Y y) { linear_attention(Mask::kBidirectional, x, x, x, y); },
      [](X x, Y y) { hybrid_attention({.window_size = 2}, x, x, x, x, x, y); },
      [](X x, Y y) { series_attention(Mask::kCausal, 3, x, x, x, y); },
      [&](X x, Y y) {
        elu_plus_one_features({weight, 4}, bias, x, y);
      },
      [&](X x, Y y) {
        positive_random_features(Side::kKey, {weight, 4}, x, y);
      }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(allocations_of(calls[i], 200), allocations_of(calls[i], 2)) << "call " << i;
  }
}

}  // namespace
}  // namespace hedgerow::plain
