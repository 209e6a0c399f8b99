// How long one decoder layer of random weights takes: as capture runs it, and as a step of
// attention transfer does. What `hedgerow doctor --calibrate` makes speeds of.
#pragma once

#include <ATen/core/Tensor.h>

#include "coordinator/bench/layer_probe.hpp"

namespace hedgerow::worker::bench {

// Some ten seconds, or as long as four forwards of each take. Throws kExhausted, and kUsage for
// heads that are no multiple of the kv heads or an attention that does not fit the head dimension.
[[nodiscard]] measure::LayerSeconds time_layer(const measure::LayerProbe& probe,
                                               const at::Device& device,
                                               at::ScalarType compute_dtype);

}  // namespace hedgerow::worker::bench
