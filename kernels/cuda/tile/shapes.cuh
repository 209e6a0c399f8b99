// Grids, the shapes of a problem that are compiled, and the forms of a kernel.
#pragma once

#include "kernels/cuda/tile/device.hpp"
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

// Shared memory of a threadblock on cards of compute capability 8.6 and 8.9.
inline constexpr std::size_t kSmallCardBytes = std::size_t{99} << 10;

// A kernel in two forms with the same results, bit for bit: Large keeps more in shared memory and
// is what every device runs that holds it. Compact is compiled only where it is wanted and a small
// card does not hold Large but does hold Compact.
template <typename Large, typename Compact, bool kWanted = true>
struct Forms {
  static constexpr std::size_t kLargeBytes = sizeof(typename Large::Shared);
  static constexpr std::size_t kCompactBytes = sizeof(typename Compact::Shared);
  static constexpr bool kHasCompact =
      kWanted && kCompactBytes <= kSmallCardBytes && kSmallCardBytes < kLargeBytes;

  // Of the form that a device with `limit` bytes runs; of the smaller one where it holds neither.
  static constexpr std::size_t bytes(std::size_t limit) {
    return kHasCompact && kLargeBytes > limit ? kCompactBytes : kLargeBytes;
  }
  template <typename Backend>
  static void run(const typename Large::Arguments& arguments, Stream stream) {
    if constexpr (kHasCompact) {
      if (kLargeBytes > device_limits().shared_bytes) {
        Backend::template run<Compact>(arguments, stream);
        return;
      }
    }
    Backend::template run<Large>(arguments, stream);
  }
};

}  // namespace hedgerow::kernels::cuda
