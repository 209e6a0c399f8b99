// The workers that a plan is held against: of this machine, of a cluster file, or those that have
// connected. What was not measured on them is assumed and named so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/wire/messages.hpp"
#include "storage/recipe/cluster_file.hpp"

namespace hedgerow::coordinator {

struct PlanLimits;

// Operations a second of a GPU, or of one core; 0: not known.
struct ComputeSpeed {
  double product_flops = 0.0;  // in products with the model's weights
  double other_flops = 0.0;    // in all else, attention above all

  [[nodiscard]] bool is_known() const { return product_flops > 0.0 && other_flops > 0.0; }
};

// Workers that are alike, and their nodes.
struct WorkerKind {
  std::string name{};
  int nodes = 1;
  int workers_per_node = 1;  // of GPU nodes: one a GPU
  bool on_gpu = false;
  std::uint64_t gpu_memory_bytes = 0;   // of one GPU; 0: not known
  std::uint64_t host_memory_bytes = 0;  // of a node, shared by its workers; 0: not known
  int cores = 1;                        // of a node
  ComputeSpeed speed{};                 // of a GPU, or of a core where there is none
  double disk_bytes_per_second = 1e9;   // that one process reads
  double worker_start_seconds = 0.4;    // LibTorch, connection, first grant
  double price_per_hour = 0.0;          // of a node
  double mtbf_hours = 0.0;              // of a node; 0: never fails
  std::string measured{};               // when and on what the speed was measured; empty: assumed

  [[nodiscard]] int workers() const { return nodes * workers_per_node; }
  // Memory of one worker, where it computes.
  [[nodiscard]] std::uint64_t worker_memory_bytes() const;
  // Cores of one of so many processes on a node, or its GPU. `threads`: as told; 0: its share.
  [[nodiscard]] double units(int threads, int processes_per_node) const;
};

// Where one rank of the finetune computes.
struct RankDevice {
  bool on_gpu = false;
  std::uint64_t gpu_memory_bytes = 0;  // 0: not known, or no GPU
};
[[nodiscard]] inline RankDevice rank_device(const WorkerKind& kind) {
  return {kind.on_gpu, kind.on_gpu ? kind.gpu_memory_bytes : 0};
}

// `local_workers` of this machine, with its memory, cores and the speed that is assumed of such
// cores; on its GPUs if `on_gpus`. None without workers.
[[nodiscard]] std::vector<WorkerKind> workers_of_this_machine(int local_workers, bool on_gpus);

// Workers of [[nodes]], one a GPU, or workers.tasks_per_node a node without GPUs.
[[nodiscard]] std::vector<WorkerKind> workers_of(const storage::Cluster& cluster);

// Workers that said hello, equal ones together. Each has its memory to itself.
[[nodiscard]] std::vector<WorkerKind> workers_of(const std::vector<wire::Hello>& hellos);

// Where a worker has other memory than all of the cluster file's: a warning that names both
// numbers. The plan goes by the file, the scheduler by what the worker says. Empty: it is one of
// them, or says nothing.
[[nodiscard]] std::string contradiction(const wire::Hello& hello,
                                        const std::vector<WorkerKind>& planned);

// Free disk at `directory` (which need not exist yet), the dtype that "auto" means here.
[[nodiscard]] PlanLimits limits_of_this_machine(const std::filesystem::path& directory);

// `limits` for the machines of a cluster file: its workers, disk and network. What is free where
// the run will lie (0: not known) counts where it is less than the file says.
void hold_against(const storage::Cluster& cluster, PlanLimits& limits);

void to_json(nlohmann::json& json, const WorkerKind& kind);

}  // namespace hedgerow::coordinator
