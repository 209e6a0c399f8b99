// softmax(z) over the features, clamped (Hedgehog eq. 4; LoLCATs' `softmax_dim`).
#pragma once

#include "kernels/maps/map.hpp"

namespace hedgerow::kernels::maps {

struct HedgehogSoftmax : Map<FeatureMapKind::kHedgehogSoftmax> {
  static constexpr bool kNormalised = true;

  template <typename X>
  HEDGEROW_MAP static X gradient(X p, X u, X dot, X /*share*/) {
    return p * (u - dot);
  }
  template <typename Tensor>
  static Tensor of_tensor(const Tensor& z, double /*t*/) {
    return softmax(z, -1);
  }
};

}  // namespace hedgerow::kernels::maps
