// The clock of benches, and the layer that `doctor --calibrate` times.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "storage/base/error.hpp"
#include "worker/bench/alternate.hpp"
#include "worker/bench/layer_times.hpp"

namespace hedgerow::worker::bench {
namespace {

// Catches: all repeats of one contender before those of the next.
TEST(Alternate, ContendersTakeTurns) {
  std::string order;
  const std::vector<std::function<void()>> both = {[&] { order += 'a'; }, [&] { order += 'b'; }};
  const std::vector<double> medians = alternate(both, 2, at::kCPU);
  order.erase(std::unique(order.begin(), order.end()), order.end());
  EXPECT_EQ(order, "ababab");  // to warm up, and two repeats
  EXPECT_GE(medians[0], 0);
}

TEST(Alternate, TheMedianOfAnEvenNumberIsTheMiddleOfTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

measure::LayerProbe small_layer() {
  measure::LayerProbe probe{.hidden_size = 32,
                            .intermediate_size = 64,
                            .num_attention_heads = 4,
                            .num_key_value_heads = 2,
                            .head_dim = 8,
                            .seq_len = 64,
                            .sequences = 2};
  probe.attention.feature_dim = 8;
  probe.attention.window_size = 16;
  return probe;
}

TEST(LayerTimes, AStepOfTransferTakesLongerThanALayersProductsInBothDtypes) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // as it is timed; several that wait for a busy core tell no order
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const measure::LayerSeconds seconds = time_layer(small_layer(), at::kCPU, dtype);
    EXPECT_GT(seconds.products, 0.0);
    EXPECT_GT(seconds.capture, 0.0);
    EXPECT_GT(seconds.transfer, seconds.products);
  }
  at::set_num_threads(threads);
}

TEST(LayerTimes, AShapeThatNoLayerHasIsRefused) {
  measure::LayerProbe heads = small_layer(), length = small_layer(), features = small_layer();
  heads.num_attention_heads = 3;
  length.seq_len = 0;
  features.attention.feature_dim = -1;
  for (const measure::LayerProbe& probe : {heads, length, features}) {
    try {
      (void)time_layer(probe, at::kCPU, at::kFloat);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage) << error.what();
    }
  }
}

}  // namespace
}  // namespace hedgerow::worker::bench
