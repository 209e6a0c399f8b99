// The clock of a bench: contenders take turns, so that a busy or throttled machine hurts all of
// them alike, and medians are compared. On the CPU a repeat is as many calls as last a few
// milliseconds, under one stopwatch, caches warm. On CUDA every call lies between two events of its
// own, behind a write that is larger than the L2 cache; the host never waits between them.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <span>
#include <vector>

namespace hedgerow::worker::bench {

// Medians over the repeats, in milliseconds of one call; one or two calls of each contender before
// the first repeat. Exceptions of a call pass through.
[[nodiscard]] std::vector<double> alternate(std::span<const std::function<void()>> contenders,
                                            int repeats,
                                            const at::Device& device);

// Milliseconds of `calls` calls in a row, as above.
[[nodiscard]] double milliseconds(const std::function<void()>& call,
                                  int calls,
                                  const at::Device& device);

[[nodiscard]] double median(std::vector<double> values);  // of at least one

}  // namespace hedgerow::worker::bench
