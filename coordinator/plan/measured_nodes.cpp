#include "coordinator/plan/measured_nodes.hpp"

#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::NodeKind;

// 0: not measured.
void take(NodeKind& node, const NodeKind& measured) {
  for (const auto figure : {&NodeKind::memory_gb,
                            &NodeKind::gpu_memory_gb,
                            &NodeKind::product_tflops,
                            &NodeKind::other_tflops,
                            &NodeKind::disk_gb_s,
                            &NodeKind::worker_start_s}) {
    if (measured.*figure > 0) node.*figure = measured.*figure;
  }
  node.cores = measured.cores;
  node.measured = measured.measured;
}

}  // namespace

fs::path measured_beside(const fs::path& cluster) {
  return fs::path(cluster).replace_extension(".measured.toml");
}

storage::Cluster load_cluster(const fs::path& cluster) {
  storage::Cluster loaded = storage::Cluster::load(cluster);
  const fs::path beside = measured_beside(cluster);
  if (!fs::exists(beside)) return loaded;
  for (const NodeKind& measured : storage::Cluster::load(beside).nodes) {
    for (NodeKind& node : loaded.nodes) {
      if (node.name == measured.name && (node.gpus > 0) == (measured.gpus > 0))
        take(node, measured);
    }
  }
  return loaded;
}

void copy_cluster(const fs::path& from, const fs::path& to) {
  storage::write_atomically(to, storage::read_text(from));
  if (fs::exists(measured_beside(from))) {
    storage::write_atomically(measured_beside(to), storage::read_text(measured_beside(from)));
  } else {
    fs::remove(measured_beside(to));  // of another cluster file
  }
}

}  // namespace hedgerow::coordinator
