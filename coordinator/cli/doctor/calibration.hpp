// What `hedgerow doctor --calibrate` makes of its measurements, without measuring: speeds in the
// plan's own counts, and files with the figures in them. Pure functions; machine_speed.hpp
// measures.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "coordinator/bench/layer_probe.hpp"
#include "coordinator/plan/plan_costs.hpp"
#include "storage/recipe/cluster_file.hpp"

namespace hedgerow::coordinator::cli {

// The speed at which a plan would say these seconds: of products what they took alone, of all else
// what a capture forward and a transfer step took together beyond their products. `capture` and
// `transfer` are the plan's counts of what was timed. Throws kUnavailable where the seconds
// contradict each other, as on a machine that does much else.
[[nodiscard]] ComputeSpeed speed_of(const measure::LayerSeconds& seconds,
                                    const Work& capture,
                                    const Work& transfer);

// The entry that a machine with (or without) GPUs is of: the one named `wanted`, or of those that
// are alike in that the only one. Throws kUsage naming the candidates; `file` begins the message.
[[nodiscard]] std::size_t entry_of(const storage::Cluster& cluster,
                                   const std::string& wanted,
                                   bool has_gpus,
                                   const std::string& file);

// A cluster file's text, which may be empty, with one more entry that has all figures of `node`.
[[nodiscard]] std::string with_entry(const std::string& toml, const storage::NodeKind& node);

// The file beside a cluster file (plan/measured_nodes.hpp) that has the entries `before`, and
// `node` in place of the one of its name.
[[nodiscard]] std::string measured_text(const std::vector<storage::NodeKind>& before,
                                        const storage::NodeKind& node);

}  // namespace hedgerow::coordinator::cli
