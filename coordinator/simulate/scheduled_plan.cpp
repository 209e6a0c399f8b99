#include "coordinator/simulate/scheduled_plan.hpp"

#include <algorithm>

#include "coordinator/plan/plan_geometry.hpp"
#include "coordinator/plan/plan_times.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr double kSecondsPerHour = 3600.0;

std::vector<SimulatedWorkers> simulated_workers(const std::vector<WorkerKind>& kinds) {
  std::vector<SimulatedWorkers> workers;
  for (const WorkerKind& kind : kinds) {
    workers.push_back({.name = kind.name,
                       .nodes = kind.nodes,
                       .workers_per_node = kind.workers_per_node,
                       .gpus_per_worker = kind.on_gpu ? 1 : 0,
                       .memory_bytes = kind.worker_memory_bytes(),
                       .mean_seconds_between_failures = kind.mtbf_hours * kSecondsPerHour});
  }
  return workers;
}

}  // namespace

SimulationInput simulation_of(const Plan& plan,
                              const storage::Recipe& recipe,
                              const PlanSubject& subject) {
  if (!plan.knows_times()) {
    throw storage::Error(
        storage::ErrorKind::kUsage,
        "--simulate needs the speed of the workers; give --cluster FILE with product_tflops and "
        "other_tflops, which 'hedgerow doctor --calibrate' measures");
  }
  const auto costs =
      std::make_shared<const Costs>(recipe, subject.model, subject.tokens, subject.limits);
  SimulationInput input;
  input.geometry = geometry_of(plan, recipe);
  input.needs = needs_of(plan);
  input.keep = KeepBoundaries::parse(recipe.plan.keep_boundaries);
  input.workers = simulated_workers(subject.limits.workers);
  input.task_seconds = [&plan, costs, recipe, subject](const TaskId& task, std::size_t kind) {
    return task_seconds(plan, *costs, recipe, subject.tokens, subject.limits, task, kind);
  };
  input.load_seconds = [&plan, costs, subject](const TaskId& task, std::size_t kind) {
    const BlockPlan& block = plan.blocks[static_cast<std::size_t>(task.block)];
    return block.num_layers * costs->layer_bytes() /
           subject.limits.workers[kind].disk_bytes_per_second;
  };
  input.lease_seconds = recipe.workers.lease_s;
  if (recipe.transfer.max_steps > 0) {
    input.checkpoint_seconds = input.task_seconds(TaskId::transfer(plan.blocks.back().block), 0) *
                               recipe.transfer.checkpoint_every / recipe.transfer.max_steps;
  }
  const WorkerKind& first = subject.limits.workers.front();
  const int ranks = recipe.finetune.ranks;
  input.finetune_nodes = std::min(
      first.nodes,
      first.on_gpu ? (ranks + first.workers_per_node - 1) / first.workers_per_node : ranks);
  input.finetune_gpus = first.on_gpu ? ranks : 0;
  return input;
}

void schedule_stages(Plan& plan, const storage::Recipe& recipe, const PlanSubject& subject) {
  // With more shards a simulation takes longer than a user waits for a plan.
  constexpr std::int64_t kMostShards = 500'000;
  const std::int64_t shards = std::int64_t{plan.last_boundary()} * plan.capture.num_shards();
  if (!plan.knows_times() || shards > kMostShards || plan.num_logit_pieces > kMostShards) return;
  SimulationInput input = simulation_of(plan, recipe, subject);
  for (SimulatedWorkers& workers : input.workers) workers.mean_seconds_between_failures = 0.0;
  const Simulation simulation = simulate(input);
  if (!simulation.finished) return;
  double price = 0.0, together = 0.0, start = 0.0;
  for (const WorkerKind& kind : plan.workers) {
    price += kind.nodes * kind.price_per_hour;
    start = std::max(start, kind.worker_start_seconds);
  }
  for (const SimulatedStage& stage : simulation.stages) {
    together += stage.granted_seconds;
    for (StageEstimate& estimate : plan.estimates) {
      if (estimate.stage != stage.stage || stage.stage == Stage::kAssemble) continue;
      // Workers of a simulation do not share a disk.
      estimate.seconds = std::max(stage.granted_seconds, estimate.disk_seconds);
      estimate.gpu_hours = stage.busy_gpu_seconds / kSecondsPerHour;
      estimate.cost = price * estimate.seconds / kSecondsPerHour;
    }
  }
  // The workers' start belongs to no task.
  plan.overlap_seconds = std::max(0.0, together - simulation.makespan_seconds) - start;
}

PlanTimer scheduling(const PlanSubject& subject) {
  return [subject](Plan& plan, const storage::Recipe& recipe) {
    schedule_stages(plan, recipe, subject);
  };
}

}  // namespace hedgerow::coordinator
