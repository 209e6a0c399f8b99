// elu(z) + 1: z + 1 above 0, e^z below, clamped (arXiv 2006.16236).
#pragma once

#include "kernels/maps/map.hpp"

namespace hedgerow::kernels::maps {

struct EluPlusOne : Map<FeatureMapKind::kEluPlusOne> {
  template <typename X, typename Exponential>
  HEDGEROW_MAP static X activate(X z, float /*t*/, Exponential exponential) {
    const X below = exponential(z > 0.0F ? X{} : z);
    return z > 0.0F ? z + 1.0F : below;
  }
  template <typename X>
  HEDGEROW_MAP static X derivative(X phi, float /*t*/) {
    return phi > 1.0F ? X{} + 1.0F : phi;
  }
  template <typename Tensor>
  static Tensor of_tensor(const Tensor& z, double /*t*/) {
    return elu(z) + 1;
  }
};

}  // namespace hedgerow::kernels::maps
