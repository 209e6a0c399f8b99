// z with its sign, for linear attention on the raw q and k and for tests.
#pragma once

#include "kernels/maps/map.hpp"

namespace hedgerow::kernels::maps {

struct Identity : Map<FeatureMapKind::kIdentity> {
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
    return z;
  }
};

}  // namespace hedgerow::kernels::maps
