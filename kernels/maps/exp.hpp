// e^(t z), clamped: Hedgehog's spiky baseline without learning, exp(t x) for t = 1, 2, ... (arXiv
// 2402.04347, section 3). Not shifted, because a key's scale does not cancel: t z above 88 is
// infinite in fp32 and stops the layer.
#pragma once

#include "kernels/maps/map.hpp"

namespace hedgerow::kernels::maps {

struct Exp : Map<FeatureMapKind::kExp> {
  template <typename X, typename Exponential>
  HEDGEROW_MAP static X activate(X z, float t, Exponential exponential) {
    return exponential(z * t);
  }
  template <typename X>
  HEDGEROW_MAP static X derivative(X phi, float t) {
    return phi * t;
  }
  template <typename Tensor>
  static Tensor of_tensor(const Tensor& z, double t) {
    return exp(z * t);
  }
};

}  // namespace hedgerow::kernels::maps
