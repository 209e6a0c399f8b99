#include "coordinator/plan/plan_memory.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "coordinator/plan/bytes_text.hpp"
#include "coordinator/plan/plan_costs.hpp"
#include "coordinator/plan/plan_mesh.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::ModelConfig;
using storage::Recipe;

// What one process has, where it computes, and on a GPU what its host has for it; 0: not known.
struct Room {
  std::uint64_t memory = 0, host = 0;
};

Room room_of(const WorkerKind& kind, int processes_per_node) {
  const auto count = static_cast<std::uint64_t>(std::max(1, processes_per_node));
  const std::uint64_t host = kind.host_memory_bytes / count;
  return kind.on_gpu ? Room{kind.gpu_memory_bytes, host} : Room{host, 0};
}

bool fits_in(std::uint64_t need, std::uint64_t has) { return has == 0 || need <= has; }

// What a process of a stage needs where it computes, by the kind of worker.
using NeedOf = std::function<std::uint64_t(bool on_gpu)>;

class MemoryCheck {
 public:
  MemoryCheck(const Recipe& recipe,
              const ModelConfig& model,
              const PlanTokens& tokens,
              const PlanLimits& limits,
              Plan& plan)
      : recipe_(recipe),
        model_(model),
        tokens_(tokens),
        limits_(limits),
        costs_(recipe, model, tokens, limits),
        planner_(recipe, model, tokens, limits),
        plan_(plan) {}

  void run() {
    if (limits_.workers.empty()) return;
    check_hosts();
    check_blocks();
    if (plan_.logits) {
      check_workers([this](bool on_gpu) { return logits_need(on_gpu); },
                    "the teacher's logits for finetune need ",
                    " of memory",
                    "lower plan.layers_per_block, or set finetune.objective = \"ce\"");
    }
    if (plan_.evaluates) {
      check_workers([this](bool on_gpu) { return costs_.evaluate_memory(on_gpu); },
                    "evaluation needs ",
                    "",
                    "lower plan.sequences_per_forward or data.evaluate.seq_len, or use fewer "
                    "workers.local");
    }
    if (plan_.finetunes) check_ranks();
    if (plan_.problems.empty() && limits_.workers.size() > 1) check_kinds();
  }

 private:
  [[nodiscard]] std::uint64_t logits_need(bool on_gpu) const {
    const BlockPlan& last = plan_.blocks[static_cast<std::size_t>(plan_.last_boundary())];
    return costs_.logits_memory(*plan_.logits, plan_.num_layers - last.first_layer, on_gpu);
  }

  [[nodiscard]] bool any_fits(const NeedOf& need) const {
    return std::any_of(limits_.workers.begin(), limits_.workers.end(), [&](const WorkerKind& kind) {
      return fits_in(need(kind.on_gpu), room_of(kind, kind.workers_per_node).memory);
    });
  }
  // The kind of workers that has the most memory.
  [[nodiscard]] const WorkerKind& largest() const {
    return *std::max_element(limits_.workers.begin(),
                             limits_.workers.end(),
                             [](const WorkerKind& a, const WorkerKind& b) {
                               return a.worker_memory_bytes() < b.worker_memory_bytes();
                             });
  }

  void check_workers(const NeedOf& need,
                     const std::string& what,
                     const std::string& of,
                     const std::string& remedy) {
    if (any_fits(need)) return;
    plan_.problems.push_back({what + bytes_text(need(largest().on_gpu)) + of + ", a worker has " +
                                  bytes_text(largest().worker_memory_bytes()),
                              remedy});
  }

  // Workers on GPUs have a process each on the host.
  void check_hosts() {
    const std::uint64_t need = costs_.gpu_process_memory();
    for (const WorkerKind& kind : limits_.workers) {
      const std::uint64_t has = room_of(kind, kind.workers_per_node).host;
      if (!kind.on_gpu || fits_in(need, has)) continue;
      plan_.problems.push_back({"a worker on a GPU needs " + bytes_text(need) +
                                    " of its host's memory, on \"" + kind.name + "\" it has " +
                                    bytes_text(has),
                                "give such a node more memory, or fewer GPUs: " +
                                    std::to_string(kind.host_memory_bytes / need) + " have room"});
    }
  }

  void check_blocks() {
    const int k = recipe_.plan.layers_per_block;
    const auto need_of = [](const Costs& costs, int layers) {
      return [&costs, layers](bool on_gpu) { return costs.block_memory(layers, on_gpu); };
    };
    const int layers = std::min(k, model_.num_hidden_layers);
    if (any_fits(need_of(costs_, layers))) return;
    int fits = layers - 1;
    while (fits > 0 && !any_fits(need_of(costs_, fits))) --fits;
    const WorkerKind& has = largest();
    plan_.problems.push_back(
        {"a block of " + std::to_string(k) + (k == 1 ? " layer" : " layers") + " needs " +
             bytes_text(costs_.block_memory(layers, has.on_gpu)) + " of memory, a worker has " +
             bytes_text(has.worker_memory_bytes()),
         fits > 0 ? "the largest plan.layers_per_block that fits is " + std::to_string(fits)
                  : smaller_block()});
  }

  // The smallest change that makes one layer fit.
  [[nodiscard]] std::string smaller_block() const {
    const auto fits_with = [this](const Recipe& changed, const PlanTokens& tokens) {
      const Costs costs(changed, model_, tokens, limits_);
      return any_fits([&](bool on_gpu) { return costs.block_memory(1, on_gpu); });
    };
    Recipe changed = recipe_;
    changed.plan.compute_dtype = "bf16";
    if (recipe_.plan.compute_dtype != "bf16" && fits_with(changed, tokens_))
      return "one layer fits with plan.compute_dtype = \"bf16\"";
    changed = recipe_;
    changed.plan.sequences_per_forward = 1;
    if (recipe_.plan.sequences_per_forward > 1 && fits_with(changed, tokens_))
      return "one layer fits with plan.sequences_per_forward = 1";
    return "not even one layer fits; lower plan.sequences_per_forward or data.transfer.seq_len";
  }

  // Ranks are of one kind of node.
  void check_ranks() {
    const storage::Mesh& mesh = plan_.mesh.mesh;
    const auto takes_all = [this](const WorkerKind& kind) {
      return planner_.fits(plan_.mesh, kind);
    };
    // A GPU's host is judged by check_hosts().
    if (std::ranges::any_of(limits_.workers, takes_all)) return;
    const WorkerKind& kind = largest();
    const int ranks = mesh.ranks();
    const std::string set = "finetune.ranks = " + std::to_string(ranks);
    if (kind.on_gpu && ranks > kind.workers()) {
      plan_.problems.push_back({set + ", but nodes \"" + kind.name + "\" have " +
                                    std::to_string(kind.workers()) + " GPUs",
                                other_ranks(kind)});
      return;
    }
    const std::vector<std::uint64_t> needs = planner_.stage_memory(mesh, rank_device(kind));
    const auto largest_stage = std::ranges::max_element(needs);
    const std::uint64_t has = rank_memory(kind, ranks);
    if (fits_in(*largest_stage, has)) return;
    const int stage = static_cast<int>(largest_stage - needs.begin());
    plan_.problems.push_back({"finetune needs " + bytes_text(*largest_stage) + " a rank in " +
                                  planner_.stage_text(mesh, stage) + " of finetune.mesh = \"" +
                                  storage::mesh_text(mesh) + "\", a rank has " + bytes_text(has) +
                                  ": " + bytes_text(*largest_stage - has) + " are missing",
                              smaller_rank(kind)});
  }

  // Powers of two, and all workers of some nodes: the next above the recipe's, else the next below.
  [[nodiscard]] std::optional<storage::Mesh> other_mesh(const WorkerKind& kind) const {
    constexpr int kMost = 1024;
    const int most = std::min(kMost, kind.on_gpu ? kind.workers() : kind.nodes * kind.cores);
    std::set<int> counts;
    for (int count = 1; count <= most; count *= 2) counts.insert(count);
    for (int nodes = 1; nodes <= kind.nodes && nodes * kind.workers_per_node <= most; ++nodes)
      counts.insert(nodes * kind.workers_per_node);
    const int ranks = recipe_.finetune.ranks;
    if (ranks <= most) counts.insert(ranks);  // in another mesh than the recipe's own
    for (auto count = counts.lower_bound(ranks); count != counts.end(); ++count) {
      if (const auto mesh = planner_.shortest_fitting(*count, kind)) return mesh;
    }
    for (auto count = counts.lower_bound(ranks); count != counts.begin();) {
      if (const auto mesh = planner_.shortest_fitting(*--count, kind)) return mesh;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::string other_ranks(const WorkerKind& kind) const {
    const std::string otherwise =
        ", or set finetune.enabled = false and train the adapter elsewhere";
    if (const auto mesh = other_mesh(kind)) {
      return "finetune.ranks = " + std::to_string(mesh->ranks()) + " fits, as finetune.mesh = \"" +
             storage::mesh_text(*mesh) + "\" or \"auto\"";
    }
    return "no other number of ranks fits there; use more nodes, or nodes with more memory" +
           otherwise;
  }

  [[nodiscard]] std::string smaller_rank(const WorkerKind& kind) const {
    if (other_mesh(kind)) return other_ranks(kind);
    Recipe changed = recipe_;
    changed.plan.compute_dtype = "bf16";
    const auto fits = [this](const Recipe& recipe) {
      return MeshPlanner(recipe, model_, tokens_, limits_).fits_somewhere();
    };
    if (recipe_.plan.compute_dtype != "bf16" && fits(changed))
      return "it fits with plan.compute_dtype = \"bf16\"";
    changed = recipe_;
    changed.finetune.sequences_per_micro_batch = 1;
    if (recipe_.finetune.sequences_per_micro_batch > 1 && fits(changed))
      return "it fits with finetune.sequences_per_micro_batch = 1";
    return other_ranks(kind);
  }

  // A kind of node that would stand idle from the beginning to the end.
  void check_kinds() {
    for (const WorkerKind& kind : limits_.workers) {
      const std::uint64_t has = room_of(kind, kind.workers_per_node).memory;
      const bool works =
          fits_in(costs_.block_memory(largest_block(), kind.on_gpu), has) ||
          (plan_.captures && fits_in(costs_.capture_memory(largest_block(), kind.on_gpu), has)) ||
          (plan_.logits && fits_in(logits_need(kind.on_gpu), has)) ||
          (plan_.evaluates && fits_in(costs_.evaluate_memory(kind.on_gpu), has)) ||
          (plan_.finetunes && planner_.fits(plan_.mesh, kind));
      if (works) continue;
      plan_.problems.push_back(
          {"no stage fits a worker on nodes \"" + kind.name + "\", which has " + bytes_text(has) +
               ": a capture needs " +
               bytes_text(costs_.capture_memory(largest_block(), kind.on_gpu)),
           "lower plan.layers_per_block, or take these nodes out of the cluster file"});
    }
  }
  [[nodiscard]] int largest_block() const {
    return std::min(recipe_.plan.layers_per_block, plan_.num_layers);
  }

  const Recipe& recipe_;
  const ModelConfig& model_;
  const PlanTokens& tokens_;
  const PlanLimits& limits_;
  Costs costs_;
  MeshPlanner planner_;
  Plan& plan_;
};

}  // namespace

void check_memory(const Recipe& recipe,
                  const ModelConfig& model,
                  const PlanTokens& tokens,
                  const PlanLimits& limits,
                  Plan& plan) {
  MemoryCheck(recipe, model, tokens, limits, plan).run();
}

}  // namespace hedgerow::coordinator
