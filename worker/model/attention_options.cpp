#include "worker/model/attention_options.hpp"

namespace hedgerow::worker {
kernels::HybridOptions hybrid_options(const storage::AttentionSpec& spec) {
  kernels::HybridOptions options;
  options.feature_map.kind = spec.feature_map;
  options.feature_map.negation = spec.negation;
  options.feature_map.order = spec.order;
  options.feature_map.temperature = spec.temperature;
  options.layout = spec.window;
  options.window_size = spec.window_size;
  options.num_sinks = spec.num_sinks;
  options.recall_cache = spec.recall_cache;
  options.linear_cap = spec.linear_cap;
  return options;
}

kernels::HybridOptions training_options(const kernels::HybridOptions& options) {
  kernels::HybridOptions without = options;
  without.recall_cache = 0;
  return without;
}

}  // namespace hedgerow::worker
