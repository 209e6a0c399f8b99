#include "storage/model/attention_spec.hpp"

#include <gtest/gtest.h>

#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::worker {
namespace {

// Some query of a sequence of `tokens` has a key before its window that is no sink.
bool has_linear_pair(const storage::AttentionSpec& spec, int tokens) {
  const kernels::HybridOptions options = spec;
  for (int query = 0; query < tokens; ++query) {
    if (kernels::window_begin(options.window, options.window_size, query) > options.num_sinks)
      return true;
  }
  return false;
}

// Catches: a recipe that is accepted although its window covers every sequence, or refused although
// one key is linear.
TEST(AttentionSpec, TheLongestExactSequenceIsTheLongestWithoutALinearPairInTheKernels) {
  for (const auto layout : {storage::WindowLayout::kNone,
                            storage::WindowLayout::kSliding,
                            storage::WindowLayout::kTerraced}) {
    for (int window = 1; window <= 9; ++window) {
      const int most_sinks = layout == storage::WindowLayout::kNone ? 0 : window;
      for (int sinks = 0; sinks <= most_sinks; ++sinks) {
        storage::AttentionSpec spec;
        spec.window = layout;
        spec.window_size = window;
        spec.num_sinks = sinks;
        for (int tokens = 1; tokens <= 40; ++tokens) {
          EXPECT_EQ(has_linear_pair(spec, tokens), tokens > spec.longest_exact_sequence())
              << to_string(layout) << ", a window of " << window << ", " << sinks << " sinks, "
              << tokens << " tokens";
        }
      }
    }
  }
}

}  // namespace
}  // namespace hedgerow::worker
