// The one constant of the recall cache (kernels/problem/recall_cache.hpp) that device code needs
// too: plain, so that nvcc and the host emulation include it without LibTorch.
#pragma once

namespace hedgerow::kernels {

// Keeps a state's division finite where a map's features are all 0.
inline constexpr double kLeastRecallMass = 1e-12;

}  // namespace hedgerow::kernels
