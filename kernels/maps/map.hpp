// What a file of this folder says of one map: phi(z) and its derivative, once for the CPU's
// vectors, a CUDA thread's floats and, as a program of ATen, tensors. maps.hpp lists them; the rows
// are in kernels/options/feature_maps.hpp.
//
// An elementwise map has, for X a float or a vector of them,
//   activate(z, t, exponential) -> phi before the clamp; exponential(X) is the caller's e^x
//   derivative(phi, t)          -> phi'(z) where the clamp does not act, of phi alone: no z is kept
// and a map of a whole row, where phi = e^(z - the row's largest), over its sum if kNormalised,
//   gradient(p, u, dot, share)  -> dz of feature p; u: what reaches it, 0 where the clamp acts;
//                                  dot: the row's sum of u p, share: dot over the features that
//                                  are 1, where kShares
// both of them of_tensor(z, t) -> phi before the clamp of a tensor, differentiated by autograd: of
// the row, its last dimension. t is FeatureMapOptions::temperature.
#pragma once

#include "kernels/options/feature_maps.hpp"

#if defined(__CUDACC__)
#define HEDGEROW_MAP __device__ __forceinline__
#else
#define HEDGEROW_MAP __attribute__((always_inline)) inline
#endif

namespace hedgerow::kernels::maps {

template <FeatureMapKind kind>
struct Map {
  static constexpr FeatureMapKind kKind = kind;
  static constexpr bool kClamped = row_of(kind).clamped;
  static constexpr bool kNormalised = false, kShares = false;
};

}  // namespace hedgerow::kernels::maps
