#include "worker/model/attention_options.hpp"

#include "storage/base/error.hpp"

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
    case storage::FeatureMapKind::kPositiveRandom:
      return kernels::FeatureMapKind::kPositiveRandom;
    case storage::FeatureMapKind::kTaylor:
      return kernels::FeatureMapKind::kTaylor;
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
  options.feature_map.order = spec.order;
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
    case storage::FeatureMapStart::kGaussian:
      return kernels::FeatureMapStart::kGaussian;
    case storage::FeatureMapStart::kOrthogonalChi:
      return kernels::FeatureMapStart::kOrthogonalChi;
  }
  throw storage::Error(storage::ErrorKind::kInternal, "unknown feature map start");
}

}  // namespace hedgerow::worker
