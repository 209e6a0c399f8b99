#include "worker/bench/layer_times.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "storage/base/error.hpp"
#include "storage/recipe/recipe.hpp"
#include "worker/bench/alternate.hpp"
#include "worker/model/block_runner.hpp"
#include "worker/transfer/layer_trainer.hpp"

namespace hedgerow::worker::bench {
namespace {

constexpr double kBudgetMilliseconds = 8000.0;  // of the measured repeats
constexpr double kLeastRepeats = 3, kMostRepeats = 50;

storage::ModelConfig config_of(const measure::LayerProbe& probe) {
  for (const int size : {probe.hidden_size,
                         probe.intermediate_size,
                         probe.num_key_value_heads,
                         probe.head_dim,
                         probe.seq_len,
                         probe.sequences}) {
    if (size < 1)
      throw storage::Error(
          storage::ErrorKind::kUsage,
          "standard input: expected sizes of at least 1, found " + std::to_string(size));
  }
  if (probe.num_attention_heads < 1 || probe.num_attention_heads % probe.num_key_value_heads != 0) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         "standard input: num_attention_heads: expected a multiple of " +
                             std::to_string(probe.num_key_value_heads) + ", found " +
                             std::to_string(probe.num_attention_heads));
  }
  probe.attention.validate(probe.head_dim);
  storage::ModelConfig config;
  config.hidden_size = probe.hidden_size;
  config.intermediate_size = probe.intermediate_size;
  config.num_hidden_layers = 1;
  config.num_attention_heads = probe.num_attention_heads;
  config.num_key_value_heads = probe.num_key_value_heads;
  config.head_dim = probe.head_dim;
  return config;
}

// Rows that keep the variance of what they multiply.
LayerWeights random_layer(const storage::ModelConfig& config, const at::TensorOptions& options) {
  LayerWeights layer;
  layer.attention_norm = at::ones({config.hidden_size}, options.dtype(at::kFloat));
  layer.mlp_norm = layer.attention_norm;
  for (const ProductSlots& product : kProducts) {
    std::int64_t rows = 0, columns = 0;
    for (const storage::Slot slot : product.all()) {
      const storage::LinearModule module = storage::linear_module(config, slot);
      rows += module.rows;
      columns = module.columns;
    }
    layer.*product.product = FrozenProduct(
        at::randn({rows, columns}, options).mul_(1.0 / std::sqrt(static_cast<double>(columns))));
  }
  return layer;
}

}  // namespace

measure::LayerSeconds time_layer(const measure::LayerProbe& probe,
                                 const at::Device& device,
                                 at::ScalarType compute_dtype) {
  const storage::ModelConfig config = config_of(probe);
  const at::TensorOptions options = at::TensorOptions(compute_dtype).device(device);
  LayerWeights layer = random_layer(config, options);
  pack_layer(layer, probe.seq_len);
  const BlockRunner runner(config, 0, {layer}, at::kBFloat16);
  layer = {};
  const RopeTable rope = make_rope_table(config, probe.seq_len, device);
  const at::Tensor hidden_states =
      at::randn({probe.sequences, probe.seq_len, config.hidden_size}, options);
  storage::Recipe recipe;
  recipe.attention = probe.attention;
  LayerTrainer trainer(0, recipe, config, /*seed=*/0, device);

  const auto products = [&] {
    runner.run(hidden_states, rope, [](int, const Qkv& qkv) { return qkv.q; });
  };
  const auto capture = [&] {
    runner.run(hidden_states, rope, [](int, const Qkv& qkv) { return teacher_attention(qkv); });
  };
  // The whole layer, as the plan counts it: only a block's last layer ends with its attention.
  const auto transfer = [&] {
    const Attend attend = [&](int, const Qkv& qkv) { return trainer.accumulate(qkv, 1.0); };
    runner.run(hidden_states, rope, attend, {.attend_batched = true});
    trainer.step();
  };
  const std::array<std::function<void()>, 3> contenders{products, capture, transfer};
  double once = 0.0;
  for (int warm_up = 0; warm_up < 2; ++warm_up) {
    once = 0.0;
    for (const auto& call : contenders) once += milliseconds(call, 1, device);
    if (once * kLeastRepeats > kBudgetMilliseconds) break;
  }
  const double repeats = std::clamp(kBudgetMilliseconds / once, kLeastRepeats, kMostRepeats);
  const std::vector<double> medians = alternate(contenders, static_cast<int>(repeats), device);
  constexpr double kSecond = 1e3;  // in milliseconds
  return {medians[0] / kSecond, medians[1] / kSecond, medians[2] / kSecond};
}

}  // namespace hedgerow::worker::bench
