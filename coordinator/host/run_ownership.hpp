// Is a process at work on a run directory: a coordinator (coordinator.json), or a `run` that still
// makes its tokens (preparing.json)? On this host the process is looked up. Of one on another host
// only the growing beat tells, and to see it grow takes up to kForeignHostTimeout: that is said,
// and not done twice.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "coordinator/wire/coordinator_file.hpp"
#include "storage/journal/journal.hpp"

namespace hedgerow::coordinator {

inline constexpr std::chrono::seconds kForeignHostTimeout = 3 * wire::kHeartbeatInterval;

// Between winning a race for a run and saying so in coordinator.json lie a few fsyncs.
inline constexpr std::chrono::seconds kWinnerTimeout = wire::kHeartbeatInterval;

// How to wait; a test's pause takes no time.
struct OwnershipWait {
  std::function<void(const std::string&)> say;  // once, before waiting; empty: not called
  std::function<void(std::chrono::milliseconds)> pause{};  // empty: sleeps
};

// What was found and does not live: files of this content are not waited for again.
struct Leftovers {
  std::optional<wire::CoordinatorFile> coordinator, tokenize_stage;
};

// Throws kUsage if another process works on this run: names host, pid and term.
[[nodiscard]] Leftovers refuse_if_held(const storage::RunLayout& layout,
                                       const OwnershipWait& wait,
                                       const Leftovers& known = {});

// The sentence of a coordinator that lost its run: what happened, and who has it now (host, pid,
// term), as soon as that shows within kWinnerTimeout. `known`: as refuse_if_held() gave it.
[[nodiscard]] std::string name_winner(const storage::RunLayout& layout,
                                      const storage::Overtaken& what,
                                      const Leftovers& known,
                                      const OwnershipWait& wait);

}  // namespace hedgerow::coordinator
