// What died behind a coordinator that was dead itself still holds its tasks in the journal.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/host/process.hpp"
#include "coordinator/state/state.hpp"

namespace hedgerow::coordinator {

inline constexpr const char* kDiedAlone = "its process died while no coordinator ran";

// The fencing tokens, each once, that these children of a former coordinator hold and are dead.
// They must be of the host of `processes`.
[[nodiscard]] std::vector<std::uint64_t> held_by_dead(
    const State& state, const std::vector<wire::ChildRecord>& children, const Processes& processes);

}  // namespace hedgerow::coordinator
