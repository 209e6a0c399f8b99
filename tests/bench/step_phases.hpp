// Where a step's time goes: the named ranges that the kernels and the worker record
// ("hedgerow::..." by RECORD_USER_SCOPE, which PyTorch's profiler shows too), summed by phase. A
// range's time is its own: what a range inside it takes is that one's. For the CPU, where a call
// returns when it is done; ranges of the calling thread alone, which waits for all others.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace hedgerow::bench {

// Seconds by phase: "frozen products", "attention", "losses", "LoRA", "element-wise", "optimizer",
// "data"; and "rest", what no range covers. Their sum is the call's time. Throws std::logic_error,
// behind the call, for a range that belongs to no phase; what the call throws passes through.
std::map<std::string, double> phases_of(const std::function<void()>& call);

}  // namespace hedgerow::bench
