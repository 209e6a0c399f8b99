#include "worker/model/attention_options.hpp"

namespace hedgerow::worker {
kernels::HybridOptions hybrid_options(const storage::AttentionSpec& spec) {
  kernels::HybridOptions options;
  options.feature_map.kind = spec.feature_map;
  options.feature_map.negation = spec.negation;
  options.feature_map.order = spec.order;
  options.layout = spec.window;
  options.window_size = spec.window_size;
  options.num_sinks = spec.num_sinks;
  return options;
}

}  // namespace hedgerow::worker
