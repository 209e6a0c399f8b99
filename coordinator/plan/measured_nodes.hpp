// What `hedgerow doctor --calibrate` measured of a cluster's nodes: a file beside the cluster file,
// cluster.measured.toml for cluster.toml, with [[nodes]] of the same names. People write the one, a
// program the other; where both say a figure, the measured one counts. Any thread.
#pragma once

#include <filesystem>

#include "storage/recipe/cluster_file.hpp"

namespace hedgerow::coordinator {

[[nodiscard]] std::filesystem::path measured_beside(const std::filesystem::path& cluster);

// Cluster::load() with the measured figures in place of its own. Throws kUsage as that does, for
// either file.
[[nodiscard]] storage::Cluster load_cluster(const std::filesystem::path& cluster);

// The file and, if there is one, that of its measured figures, under other names.
void copy_cluster(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hedgerow::coordinator
