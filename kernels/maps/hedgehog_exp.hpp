// exp(z - max z), clamped (Hedgehog eq. 5): the shift keeps fp32 finite and is the reference
// code's. It is differentiated: the features at the maximum give back the sum, sharing alike.
#pragma once

#include "kernels/maps/map.hpp"

namespace hedgerow::kernels::maps {

struct HedgehogExp : Map<FeatureMapKind::kHedgehogExp> {
  static constexpr bool kShares = true;

  template <typename X>
  HEDGEROW_MAP static X gradient(X p, X u, X /*dot*/, X share) {
    return p * u - (p == 1.0F ? share : X{});
  }
  template <typename Tensor>
  static Tensor of_tensor(const Tensor& z, double /*t*/) {
    return exp(z - amax(z, -1, true));
  }
};

}  // namespace hedgerow::kernels::maps
