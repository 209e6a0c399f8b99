#include "coordinator/dispatch/scheduler.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "coordinator/dispatch/actions.hpp"
#include "coordinator/dispatch/task_kinds.hpp"

namespace hedgerow::coordinator {
namespace {

bool fits(const WorkerView& worker, const TaskId& id, const MemoryNeeds& needs) {
  return worker.memory_bytes == 0 || need_of(id, needs) <= worker.memory_bytes;
}

bool failed_on(const TaskRecord& task, const std::string& uuid) {
  return std::any_of(task.failures.begin(), task.failures.end(), [&uuid](const Failure& failure) {
    return failure.worker == uuid;
  });
}

// A task that failed here goes to a worker where it did not, if one is connected; after three
// failures here, only there.
bool left_to_others(const TaskRecord& task,
                    const WorkerView& worker,
                    const std::vector<WorkerView>& connected,
                    const MemoryNeeds& needs) {
  if (!failed_on(task, worker.uuid)) return false;
  if (wants_second_worker(task)) return true;
  return std::any_of(connected.begin(), connected.end(), [&](const WorkerView& other) {
    return fits(other, task.id, needs) && !failed_on(task, other.uuid);
  });
}

// Captures of later blocks wait while an earlier boundary that is to be deleted still lies on disk:
// boundaries block and block + 1 are all that the plan reserved beside the kept ones.
int last_block_to_capture(const State& state, const KeepBoundaries& keep) {
  const Geometry& geometry = *state.geometry;
  for (int boundary = 1; boundary < static_cast<int>(state.shards.size()); ++boundary) {
    if (keep.keeps(boundary, geometry.num_blocks())) continue;
    const auto& shards = state.shards[static_cast<std::size_t>(boundary)];
    const int absent = state.index.boundaries[static_cast<std::size_t>(boundary)].missing;
    if (absent < static_cast<int>(shards.size())) return boundary;
  }
  return geometry.num_blocks();
}

}  // namespace

MemoryNeeds needs_of(const Plan& plan) {
  return {.capture = plan.capture_memory_bytes,
          .transfer = plan.transfer_memory_bytes,
          .logits = plan.logits_memory_bytes,
          .evaluate = plan.evaluate_memory_bytes,
          .finetune = plan.finetune_memory_bytes};
}

std::uint64_t need_of(const TaskId& id, const MemoryNeeds& needs) {
  const auto memory = kind_of(id.stage).memory;
  return memory == nullptr ? 0 : needs.*memory;
}

std::optional<TaskId> choose_task(const State& state,
                                  const WorkerView& worker,
                                  const std::vector<WorkerView>& connected,
                                  const MemoryNeeds& needs,
                                  const KeepBoundaries& keep) {
  if (!state.geometry) return std::nullopt;
  const std::set<TaskId>& ready = state.index.ready;
  const int last_block = last_block_to_capture(state, keep);
  // The first that it may have of [first, end); TaskId orders by stage, block and piece.
  const auto first_of = [&](const TaskId& first, const TaskId& end) -> std::optional<TaskId> {
    if (!fits(worker, first, needs)) return std::nullopt;
    for (auto id = ready.lower_bound(first); id != ready.end() && *id < end; ++id) {
      if (id->stage == Stage::kCapture && id->block > last_block) return std::nullopt;
      if (!left_to_others(state.task(*id), worker, connected, needs)) return *id;
    }
    return std::nullopt;
  };
  for (const wire::TaskKindRow& kind : wire::task_kinds()) {
    if (!kind.is_pulled) continue;
    const Stage stage = kind.kind;
    const auto from = [stage](int block) { return TaskId{stage, block, -1, {}}; };
    if (worker.held_block >= 0) {
      if (const auto held = first_of(from(worker.held_block), from(worker.held_block + 1)))
        return held;
    }
    if (const auto id = first_of(from(-1), from(std::numeric_limits<int>::max()))) return id;
  }
  return std::nullopt;
}

bool anything_to_grant(const State& state, const KeepBoundaries& keep) {
  const int last_block = last_block_to_capture(state, keep);
  const auto& ready = state.index.ready;
  return std::any_of(ready.begin(), ready.end(), [last_block](const TaskId& id) {
    return id.stage != Stage::kCapture || id.block <= last_block;
  });
}

std::vector<Misfit> misfits(const State& state,
                            const std::vector<WorkerView>& connected,
                            const MemoryNeeds& needs) {
  std::vector<Misfit> list;
  if (connected.empty()) return list;
  // 0 is unknown, and everything fits there: it goes before every number.
  const auto offer = [](const WorkerView& worker) { return worker.memory_bytes - 1; };
  const WorkerView& largest = *std::max_element(
      connected.begin(), connected.end(), [&](const WorkerView& a, const WorkerView& b) {
        return offer(a) < offer(b);
      });
  const std::uint64_t most =
      std::max({needs.capture, needs.transfer, needs.logits, needs.evaluate});
  // As a rule everything fits, and a run of many tasks is looked at many times a second.
  if (largest.memory_bytes == 0 || most <= largest.memory_bytes) return list;
  for (const TaskId& id : state.index.ready) {
    if (!wire::is_pulled(id.stage) || fits(largest, id, needs)) continue;
    list.push_back({id, need_of(id, needs), largest.uuid, largest.memory_bytes});
  }
  return list;
}

wire::Task make_wire_task(const State& state, const TaskId& id, std::uint64_t token) {
  const Geometry& geometry = *state.geometry;
  const TaskRecord& record = state.task(id);
  wire::Task task;
  task.fencing_token = token;
  task.seed = record.seed;
  if (record.checkpoint) task.resume = record.checkpoint->file;
  task.subject = to_string(id.subject);
  task.sequences_per_shard = geometry.sequences_per_shard;
  if (id.block >= 0) {
    task.block = id.block;
    task.first_layer = geometry.first_layer(id.block);
    task.num_layers = geometry.layers_of(id.block);
  }
  task.kind = id.stage;
  if (const auto fill = kind_of(id.stage).fill) fill(state, id, task);
  return task;
}

}  // namespace hedgerow::coordinator
