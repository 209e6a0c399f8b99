#include "worker/attention_options.hpp"

#include <ATen/ATen.h>

#include "storage/error.hpp"
#include "storage/philox.hpp"

namespace hedgerow::worker {
namespace {

kernels::FeatureMapKind feature_map_kind(storage::FeatureMapKind kind) {
  switch (kind) {
    case storage::FeatureMapKind::kHedgehogSoftmax:
      return kernels::FeatureMapKind::kHedgehogSoftmax;
    case storage::FeatureMapKind::kHedgehogExp:
      return kernels::FeatureMapKind::kHedgehogExp;
    case storage::FeatureMapKind::kT2R:
      return kernels::FeatureMapKind::kT2R;
    case storage::FeatureMapKind::kEluPlusOne:
      return kernels::FeatureMapKind::kEluPlusOne;
    case storage::FeatureMapKind::kRelu:
      return kernels::FeatureMapKind::kRelu;
    case storage::FeatureMapKind::kIdentity:
      return kernels::FeatureMapKind::kIdentity;
  }
  throw storage::Error(storage::ErrorKind::kInternal, "unknown feature map kind");
}

kernels::WindowLayout window_layout(storage::WindowLayout layout) {
  switch (layout) {
    case storage::WindowLayout::kNone:
      return kernels::WindowLayout::kNone;
    case storage::WindowLayout::kSliding:
      return kernels::WindowLayout::kSliding;
    case storage::WindowLayout::kTerraced:
      return kernels::WindowLayout::kTerraced;
  }
  throw storage::Error(storage::ErrorKind::kInternal, "unknown window layout");
}

}  // namespace

kernels::HybridOptions hybrid_options(const storage::AttentionSpec& spec) {
  kernels::HybridOptions options;
  options.feature_map.kind = feature_map_kind(spec.feature_map);
  options.feature_map.negation = spec.negation;
  options.layout = window_layout(spec.window);
  options.window_size = spec.window_size;
  return options;
}

kernels::FeatureMapStart feature_map_start(storage::FeatureMapStart start) {
  switch (start) {
    case storage::FeatureMapStart::kKaiming:
      return kernels::FeatureMapStart::kKaiming;
    case storage::FeatureMapStart::kIdentity:
      return kernels::FeatureMapStart::kIdentity;
    case storage::FeatureMapStart::kOrthogonal:
      return kernels::FeatureMapStart::kOrthogonal;
  }
  throw storage::Error(storage::ErrorKind::kInternal, "unknown feature map start");
}

at::Tensor start_feature_map(const storage::AttentionSpec& spec,
                             std::int64_t num_heads,
                             std::int64_t head_dim,
                             std::uint64_t seed,
                             std::uint32_t layer_idx,
                             std::uint32_t tensor_id) {
  if (!spec.has_projection()) {
    return {};
  }
  const kernels::FeatureMapStart start = feature_map_start(spec.start);
  at::Tensor noise = at::zeros({num_heads, head_dim, spec.projected_dim()}, at::kDouble);
  const std::int64_t draws = noise.size(1) * noise.size(2);
  for (std::int64_t head = 0; head < num_heads; ++head) {
    storage::PhiloxStream stream(seed, layer_idx, tensor_id, static_cast<std::uint32_t>(head));
    double* values = noise.data_ptr<double>() + head * draws;
    for (std::int64_t i = 0; i < draws; ++i) {
      values[i] =
          start == kernels::FeatureMapStart::kOrthogonal ? stream.normal() : stream.uniform();
    }
  }
  return kernels::start_feature_map(start, noise);
}

}  // namespace hedgerow::worker
