// Is somebody at work on a run directory: a coordinator (coordinator.json), or a `run` that still
// makes its tokens (preparing.json)? On this host the process is looked up. Of one on another host
// only the growing beat tells, and to see it grow takes up to kForeignPatience: that is said, and
// not done twice.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "coordinator/wire/coordinator_file.hpp"

namespace hedgerow::coordinator {

inline constexpr std::chrono::seconds kForeignPatience = 3 * wire::kBeatEvery;

// How to wait; a test's pause takes no time.
struct HolderWait {
  std::function<void(const std::string&)> say;        // once, before waiting; empty: nobody hears
  std::function<void(std::chrono::seconds)> pause{};  // empty: sleeps
};

// What was found and does not live: files of this content are not waited for again.
struct Leftovers {
  std::optional<wire::CoordinatorFile> coordinator, preparation;
};

// Throws kUsage if somebody lives on this run: names host, pid and term.
[[nodiscard]] Leftovers refuse_if_held(const storage::RunLayout& layout,
                                       const HolderWait& wait,
                                       const Leftovers& known = {});

}  // namespace hedgerow::coordinator
