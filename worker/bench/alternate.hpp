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

struct Contender {
  std::function<void()> call;
  int calls_a_round = 1;  // calls come in multiples of it: a decode step's cost goes round by it
};

struct Timing {
  double warm_up_ms = 0;  // of the call before the measured ones
  double median_ms = 0;   // of one call, over the repeats
};

// One call of each before the first repeat. Exceptions of a call pass through.
[[nodiscard]] std::vector<Timing> alternate(std::span<const Contender> contenders,
                                            int repeats,
                                            const at::Device& device);

// Milliseconds of `calls` calls in a row, as above.
[[nodiscard]] double milliseconds(const std::function<void()>& call,
                                  int calls,
                                  const at::Device& device);

[[nodiscard]] double median(std::vector<double> values);  // of at least one

}  // namespace hedgerow::worker::bench
