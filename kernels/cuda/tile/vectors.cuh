// Four floats at a time: one 16-byte access a lane, 512 bytes a warp. Addresses are multiples of 16
// bytes. load_once and store_once are for what is touched once a launch (a decode step's state): it
// leaves the caches first, so that what others share (maps, the ring) stays there. Two bodies, as
// warp.cuh has.
#pragma once

#include "kernels/cuda/tile/warp.cuh"

namespace hedgerow::kernels::cuda {

struct alignas(16) Four {
  float values[4];
};

#if defined(HEDGEROW_EMULATED_CUDA)
HEDGEROW_TILE const Four& aligned_four(const float* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(Four) != 0) {
    emulation::fail("four floats that are not aligned to 16 bytes");
  }
  return *reinterpret_cast<const Four*>(from);
}
HEDGEROW_TILE Four load_four(const float* from) { return aligned_four(from); }
HEDGEROW_TILE void store_four(float* to, const Four& x) { const_cast<Four&>(aligned_four(to)) = x; }
HEDGEROW_TILE Four load_once(const float* from) { return aligned_four(from); }
HEDGEROW_TILE void store_once(float* to, const Four& x) { store_four(to, x); }
#else
HEDGEROW_TILE Four load_four(const float* from) { return *reinterpret_cast<const Four*>(from); }
HEDGEROW_TILE void store_four(float* to, const Four& x) { *reinterpret_cast<Four*>(to) = x; }
HEDGEROW_TILE Four load_once(const float* from) {
  const float4 x = __ldcs(reinterpret_cast<const float4*>(from));
  return {{x.x, x.y, x.z, x.w}};
}
HEDGEROW_TILE void store_once(float* to, const Four& x) {
  __stcs(reinterpret_cast<float4*>(to),
         make_float4(x.values[0], x.values[1], x.values[2], x.values[3]));
}
#endif

}  // namespace hedgerow::kernels::cuda
