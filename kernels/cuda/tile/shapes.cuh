// Grids, and the shapes of a problem that are compiled.
#pragma once

#include "kernels/cuda/tile/feature_tiles.cuh"

namespace hedgerow::kernels::cuda {

// A grid of threadblocks, or a place in it; x runs fastest, and of y and z there are kMostRows at
// most.
struct Grid {
  int x = 1, y = 1, z = 1;
};

// visit(Shape<...>{}) for the compiled shape that is asked for; false if there is none.
template <int kHeadDim, typename Visit>
bool for_shape(KernelShape shape, const Visit& visit) {
  if (shape.head_dim != kHeadDim) {
    return false;
  }
  if (shape.negation) {
    switch (shape.projected) {
      case 32:
        visit(Shape<kHeadDim, 32, true>{});
        return true;
      case 64:
        visit(Shape<kHeadDim, 64, true>{});
        return true;
      case 128:
        visit(Shape<kHeadDim, 128, true>{});
        return true;
      default:
        return false;
    }
  }
  switch (shape.projected) {
    case 64:
      visit(Shape<kHeadDim, 64, false>{});
      return true;
    case 128:
      visit(Shape<kHeadDim, 128, false>{});
      return true;
    default:
      return false;
  }
}

}  // namespace hedgerow::kernels::cuda
