// What `hedgerow doctor --calibrate` makes of its measurements, without measuring: speeds in the
// plan's own counts, and a cluster file with the figures in it. Pure functions; machine_speed.hpp
// measures.
#pragma once

#include <cstddef>
#include <string>

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

// A file's text, which may be empty, with one more entry: what such an entry must say of `node`.
[[nodiscard]] std::string with_new_entry(const std::string& toml, const storage::NodeKind& node);

// The text of a cluster file with the measured figures of `node` (those that are above 0, and
// `measured`) in entry number `entry`: the line of a key is replaced, or one added behind the
// entry's name. Everything else stays, but for what a replaced line's comment says from the word
// "assumed" on. Throws kUsage if that cannot be done line by line, as for `nodes = [{...}]`, or the
// result does not say what it should; `file` begins the message.
[[nodiscard]] std::string with_figures(const std::string& toml,
                                       std::size_t entry,
                                       const storage::NodeKind& node,
                                       const std::string& file);

}  // namespace hedgerow::coordinator::cli
