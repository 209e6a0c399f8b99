#include "coordinator/plan/plan_workers.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "coordinator/plan/bytes_text.hpp"
#include "coordinator/plan/plan.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12;
// Assumed where a speed was neither measured nor given: 40 % of the 989 TFLOP/s of bf16 that an
// H100's data sheet gives for products, a fifth of its 67 TFLOP/s of fp32 for the rest; a core
// without matrix units.
constexpr ComputeSpeed kAssumedGpu{400e12, 13e12}, kAssumedCore{0.04e12, 0.03e12};

std::uint64_t gigabytes(double count) { return static_cast<std::uint64_t>(count * kGiga); }

WorkerKind kind_of(const storage::NodeKind& node, int tasks_per_node) {
  WorkerKind kind;
  kind.name = node.name;
  kind.nodes = node.count;
  kind.on_gpu = node.gpus > 0;
  kind.workers_per_node = kind.on_gpu ? node.gpus : std::max(1, tasks_per_node);
  kind.gpu_memory_bytes = gigabytes(node.gpu_memory_gb);
  kind.host_memory_bytes = gigabytes(node.memory_gb);
  kind.cores = node.cores;
  kind.speed = {node.product_tflops * kTera, node.other_tflops * kTera};
  if (!kind.speed.is_known()) kind.speed = kind.on_gpu ? kAssumedGpu : kAssumedCore;
  if (node.disk_gb_s > 0) kind.disk_bytes_per_second = node.disk_gb_s * kGiga;
  if (node.worker_start_s > 0) kind.worker_start_seconds = node.worker_start_s;
  kind.price_per_hour = node.price_per_hour;
  kind.mtbf_hours = node.mtbf_hours;
  kind.measured = node.measured;
  return kind;
}

std::string memory_text(const WorkerKind& kind) {
  return kind.on_gpu ? bytes_text(kind.gpu_memory_bytes) + " of GPU memory"
                     : bytes_text(kind.host_memory_bytes) + " of memory";
}

}  // namespace

std::uint64_t WorkerKind::worker_memory_bytes() const {
  return on_gpu ? gpu_memory_bytes
                : host_memory_bytes / static_cast<std::uint64_t>(std::max(1, workers_per_node));
}

double WorkerKind::units(int threads, int processes_per_node) const {
  if (on_gpu) return 1.0;
  const double share = 1.0 * cores / std::max(1, processes_per_node);
  return threads > 0 ? std::min<double>(threads, std::max(share, 1e-3)) : std::max(1.0, share);
}

std::vector<WorkerKind> workers_of(const storage::Cluster& cluster) {
  std::vector<WorkerKind> kinds;
  for (const storage::NodeKind& node : cluster.nodes)
    kinds.push_back(kind_of(node, cluster.workers.tasks_per_node));
  return kinds;
}

std::vector<WorkerKind> workers_of(const std::vector<wire::Hello>& hellos) {
  std::map<std::string, std::vector<const wire::Hello*>> hosts;
  for (const wire::Hello& hello : hellos) hosts[hello.host].push_back(&hello);
  std::vector<WorkerKind> kinds;
  for (const auto& [host, workers] : hosts) {
    WorkerKind kind;
    kind.name = workers.front()->device;
    kind.workers_per_node = static_cast<int>(workers.size());
    kind.on_gpu = workers.front()->on_gpu;
    kind.cores = 0;
    for (const wire::Hello* hello : workers) kind.cores += std::max(1, hello->threads);
    (kind.on_gpu ? kind.gpu_memory_bytes : kind.host_memory_bytes) = workers.front()->memory_bytes;
    kind.speed = kind.on_gpu ? kAssumedGpu : kAssumedCore;
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const WorkerKind& other) {
      return other.name == kind.name && other.workers_per_node == kind.workers_per_node &&
             other.worker_memory_bytes() == kind.worker_memory_bytes() && other.cores == kind.cores;
    });
    if (same == kinds.end()) {
      kinds.push_back(kind);
    } else {
      ++same->nodes;
    }
  }
  return kinds;
}

std::string contradiction(const wire::Hello& hello, const std::vector<WorkerKind>& planned) {
  // A card of "80 GB" says 79.6 GiB, and a kernel keeps some of a host's memory.
  constexpr double kTolerance = 0.1;
  const auto said = [](const WorkerKind& kind) {
    return static_cast<double>(kind.on_gpu ? kind.gpu_memory_bytes : kind.host_memory_bytes);
  };
  const auto reported = static_cast<double>(hello.memory_bytes);
  if (planned.empty() || reported <= 0) return "";
  const WorkerKind* nearest = nullptr;
  for (const WorkerKind& kind : planned) {
    if (kind.on_gpu != hello.on_gpu || said(kind) <= 0) continue;
    if (std::abs(reported - said(kind)) <= kTolerance * said(kind)) return "";
    if (nearest == nullptr || std::abs(reported - said(kind)) < std::abs(reported - said(*nearest)))
      nearest = &kind;
  }
  const std::string who = "workers with " + bytes_text(hello.memory_bytes) +
                          (hello.on_gpu ? " of GPU memory (" : " of memory (") + hello.device +
                          ") have joined, the cluster file ";
  const std::string end = "; the workers are believed, so correct the file";
  if (nearest != nullptr)
    return who + "says " + memory_text(*nearest) + " of nodes \"" + nearest->name + "\"" + end;
  return who + "has no nodes " + (hello.on_gpu ? "with" : "without") + " GPUs" + end;
}

void hold_against(const storage::Cluster& cluster, PlanLimits& limits) {
  limits.workers = workers_of(cluster);
  limits.disk_bytes_per_second = cluster.shared.bandwidth_gb_s * kGiga;
  limits.inside_bytes_per_second = cluster.network.inside_gb_s * kGiga;
  limits.between_bytes_per_second = cluster.network.between_gb_s * kGiga;
  const auto on_gpu = [](const WorkerKind& kind) { return kind.on_gpu; };
  if (std::any_of(limits.workers.begin(), limits.workers.end(), on_gpu)) limits.compute_bytes = 2;
  double capacity = cluster.shared.capacity_gb;
  // One node needs no file system that others see.
  if (capacity <= 0 && cluster.nodes.size() == 1 && cluster.nodes.front().count == 1)
    capacity = cluster.nodes.front().local_disk_gb;
  if (capacity > 0) {
    const std::uint64_t told = gigabytes(capacity);
    limits.free_disk_bytes =
        limits.free_disk_bytes > 0 ? std::min(limits.free_disk_bytes, told) : told;
  }
}

void to_json(nlohmann::json& json, const WorkerKind& kind) {
  json = {{"kind", kind.name},
          {"nodes", kind.nodes},
          {"workers_per_node", kind.workers_per_node},
          {"on_gpu", kind.on_gpu},
          {"gpu_memory_bytes", kind.gpu_memory_bytes},
          {"host_memory_bytes", kind.host_memory_bytes},
          {"cores", kind.cores},
          {"product_flops", kind.speed.product_flops},
          {"other_flops", kind.speed.other_flops},
          {"disk_bytes_per_second", kind.disk_bytes_per_second},
          {"worker_start_seconds", kind.worker_start_seconds},
          {"price_per_hour", kind.price_per_hour},
          {"mtbf_hours", kind.mtbf_hours},
          {"measured", kind.measured}};
}

}  // namespace hedgerow::coordinator
