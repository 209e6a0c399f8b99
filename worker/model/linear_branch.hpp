// A linear branch that is off by its parameters alone, so that formats, decode and exports need to
// know nothing of it: every feature product is about 1e-12 (the clamp) beside a window's weight of
// about 1. What is left is kernels::window_attention, the layer's control. Transfer exports it for
// layers that training left behind their control; evaluation recognizes it.
#pragma once

#include "kernels/hybrid_attention.hpp"

namespace hedgerow::worker {

// In place, whatever the tensors held. False, with nothing changed, where the map has no such
// parameters: no projection or window factors, a Hedgehog map with fewer than 4 columns or without
// bias, ELU + 1 without bias, positive random and Taylor features.
bool switch_off_linear_branch(const kernels::HybridParameters& parameters,
                              const kernels::FeatureMapOptions& map);

// Whether switch_off_linear_branch() made these.
[[nodiscard]] bool is_linear_branch_off(const kernels::HybridParameters& parameters);

}  // namespace hedgerow::worker
