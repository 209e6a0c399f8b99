// Rank 0 of a finetune stage that the coordinator did not start asks for it through the run
// directory (coordinator/wire/stage_start.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <optional>

#include "coordinator/wire/stage_start.hpp"

namespace hedgerow::worker {

struct StageTimeout {
  std::chrono::milliseconds limit{std::chrono::minutes(10)};
  std::chrono::milliseconds look_every{500};
};

// Asks, and waits for the answer; takes the question back when it gives up. nullopt: `stop` was
// raised. Throws kUnavailable when no coordinator answers in time.
[[nodiscard]] std::optional<wire::StageStart> ask_for_stage(const storage::RunLayout& layout,
                                                            int ranks,
                                                            const std::atomic<bool>& stop,
                                                            const StageTimeout& timeout);

}  // namespace hedgerow::worker
