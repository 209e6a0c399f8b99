// The mesh of the finetune's ranks: that of the recipe, or with finetune.mesh = "auto" the one with
// the shortest step of those whose every stage fits a rank, in nine tenths of a GPU if it can be.
// Pure arithmetic; make_plan() uses it, the check of memory asks it what would fit, and launchers
// of ranks ask it which mesh they make.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/plan/plan.hpp"
#include "coordinator/plan/plan_costs.hpp"

namespace hedgerow::coordinator {

class MeshPlanner {
 public:
  // All four outlive it.
  MeshPlanner(const storage::Recipe& recipe,
              const storage::ModelConfig& model,
              const PlanTokens& tokens,
              const PlanLimits& limits);

  // The mesh of the recipe's ranks. "auto" without the memory of any worker: shortest_mesh();
  // without their speed the fewest stages that fit; where none fits, the mesh whose largest stage
  // needs least. Throws kUsage where the ranks can make no mesh of the model's layers.
  [[nodiscard]] MeshPlan plan() const;

  // Bytes of a rank of each stage, where it computes.
  [[nodiscard]] std::vector<std::uint64_t> stage_memory(const storage::Mesh& mesh,
                                                        const RankDevice& device) const;
  // Every stage, and the processes on the host; more ranks than GPUs never do.
  [[nodiscard]] bool fits(const storage::Mesh& mesh, const WorkerKind& kind) const;
  [[nodiscard]] bool fits(const MeshPlan& plan, const WorkerKind& kind) const;
  // The recipe's own mesh, or with "auto" any of its ranks, on any kind of worker.
  [[nodiscard]] bool fits_somewhere() const;
  // The mesh of so many ranks with the fewest stages that fits this kind of worker.
  [[nodiscard]] std::optional<storage::Mesh> shortest_fitting(int ranks,
                                                              const WorkerKind& kind) const;
  // "stage 2 of 2 (layers 9 to 17 and the head)"
  [[nodiscard]] std::string stage_text(const storage::Mesh& mesh, int stage) const;

 private:
  struct Stages;

  [[nodiscard]] int micro_batches(const storage::Mesh& mesh) const;  // of the longest pipeline
  [[nodiscard]] std::vector<storage::Mesh> candidates(int ranks, int most_chunks) const;
  [[nodiscard]] Stages stages_of(const storage::Mesh& mesh) const;
  [[nodiscard]] bool fits(const storage::Mesh& mesh,
                          const std::vector<RankShare>& shares,
                          const WorkerKind& kind,
                          double usable = 1.0) const;  // of a rank's memory
  [[nodiscard]] MeshPlan choose() const;
  [[nodiscard]] storage::Mesh smallest() const;
  [[nodiscard]] double least_seconds(const storage::Mesh& mesh, const WorkerKind& kind) const;
  [[nodiscard]] MeshPlan measured(Stages stages, std::size_t kind) const;
  void time(const Stages& stages, MeshPlan& plan) const;

  const storage::Recipe& recipe_;
  const storage::ModelConfig& model_;
  const PlanTokens& tokens_;
  const PlanLimits& limits_;
  Costs costs_;
};

// Ranks on one node: one a GPU until all are taken, or as many on each node without GPUs.
[[nodiscard]] int ranks_per_node(const WorkerKind& kind, int ranks);
// What a rank has where it computes, bytes; 0: not known.
[[nodiscard]] std::uint64_t rank_memory(const WorkerKind& kind, int ranks);

// Which mesh so many ranks make, for their command line; those of finetune.launch = "elsewhere" may
// be others than the recipe's. Throws kUsage for a mesh of the recipe that has other ranks, or
// where they can make none.
[[nodiscard]] std::string mesh_of_ranks(const storage::Recipe& recipe,
                                        const storage::ModelConfig& model,
                                        const PlanTokens& tokens,
                                        const PlanLimits& limits,
                                        int ranks);

}  // namespace hedgerow::coordinator
