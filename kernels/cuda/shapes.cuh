// Grids, and the shapes of a problem that are compiled.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/cuda/feature_tiles.cuh"

namespace hedgerow::kernels::cuda {

struct Grid {  // a grid of threadblocks, or a place in it; x runs fastest
  int x = 1, y = 1, z = 1;

  [[nodiscard]] unsigned threadblocks() const {
    const std::int64_t count = static_cast<std::int64_t>(x) * y * z;
    if (count > std::numeric_limits<int>::max()) {
      throw std::length_error("a CUDA kernel needs " + std::to_string(count) +
                              " threadblocks, and a launch has 2147483647 at most; take fewer "
                              "sequences at a time");
    }
    return static_cast<unsigned>(count);
  }
  [[nodiscard]] HEDGEROW_BOTH Grid place(int index) const {
    return {index % x, index / x % y, index / x / y};
  }
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
