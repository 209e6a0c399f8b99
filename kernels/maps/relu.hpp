// max(z, 0), clamped; with a projection it is T2R's map (arXiv 2103.13076).
#pragma once

#include "kernels/maps/map.hpp"

namespace hedgerow::kernels::maps {

struct Relu : Map<FeatureMapKind::kRelu> {
  // The clamp cuts what is below 0, and keeps a NaN.
  template <typename X, typename Exponential>
  HEDGEROW_MAP static X activate(X z, float /*t*/, Exponential /*exponential*/) {
    return z;
  }
  template <typename X>
  HEDGEROW_MAP static X derivative(X /*phi*/, float /*t*/) {
    return X{} + 1.0F;
  }
  template <typename Tensor>
  static Tensor of_tensor(const Tensor& z, double /*t*/) {
    return relu(z);
  }
};

}  // namespace hedgerow::kernels::maps
