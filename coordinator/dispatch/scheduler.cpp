#include "coordinator/dispatch/scheduler.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "coordinator/dispatch/actions.hpp"

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

std::vector<storage::FileRecord> shard_files(const State& state,
                                             int boundary,
                                             int first,
                                             int count) {
  std::vector<storage::FileRecord> files;
  if (boundary == 0) return files;
  const auto& shards = state.shards[static_cast<std::size_t>(boundary)];
  for (int shard = first; shard < first + count; ++shard)
    files.push_back(shards[static_cast<std::size_t>(shard)].file);
  return files;
}

ShardRange first_missing_run(const State& state, const TaskId& id) {
  const auto& shards = state.shards[static_cast<std::size_t>(id.block) + 1];
  const ShardRange piece = shards_of_piece(*state.geometry, id.piece);
  const auto missing = [&shards](int shard) {
    return shards[static_cast<std::size_t>(shard)].state != ShardState::kCommitted;
  };
  const int end = piece.first + piece.count;
  int first = piece.first;
  while (first < end && !missing(first)) ++first;
  int last = first;
  while (last < end && missing(last)) ++last;
  return {first, last - first};
}

void append_files(const State& state, const TaskId& id, std::vector<storage::FileRecord>& files) {
  const TaskRecord& task = state.task(id);
  files.insert(files.end(), task.files.begin(), task.files.end());
}

// The layers behind the last boundary and its shards, or all layers.
void fill_logits_range(const State& state, const TaskId& id, wire::Task& task) {
  const Geometry& geometry = *state.geometry;
  task.first_shard = id.piece;
  task.num_shards = 1;
  task.sequences_per_shard = geometry.sequences_per_logit_piece;
  if (geometry.logits_from_boundary) {
    const ShardRange range = shards_of_piece(geometry, id.piece);
    task.block = geometry.last_boundary();
    task.first_layer = geometry.first_layer(task.block);
    task.first_shard = range.first;
    task.num_shards = range.count;
    task.sequences_per_shard = geometry.sequences_per_shard;
    task.inputs = shard_files(state, task.block, range.first, range.count);
  }
  task.num_layers = geometry.num_layers - task.first_layer;
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
  switch (id.stage) {
    case Stage::kCapture:
      return needs.capture;
    case Stage::kTransfer:
      return needs.transfer;
    case Stage::kLogits:
      return needs.logits;
    case Stage::kEvaluate:
      return needs.evaluate;
    case Stage::kFinetune:
      return needs.finetune;
    case Stage::kAssemble:
      break;  // copies bytes
  }
  return 0;
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
  for (const Stage stage : {Stage::kCapture, Stage::kTransfer, Stage::kLogits, Stage::kEvaluate}) {
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

bool is_pulled(const TaskId& id) {
  return id.stage != Stage::kAssemble && id.stage != Stage::kFinetune;
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
    if (!is_pulled(id) || fits(largest, id, needs)) continue;
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
  switch (id.stage) {
    case Stage::kCapture: {
      task.kind = wire::TaskKind::kCapture;
      const ShardRange run = first_missing_run(state, id);
      task.first_shard = run.first;
      task.num_shards = run.count;
      task.inputs = shard_files(state, id.block, run.first, run.count);
      break;
    }
    case Stage::kTransfer:
      task.kind = wire::TaskKind::kTransfer;
      task.inputs = shard_files(state, id.block, 0, geometry.num_shards);
      break;
    case Stage::kLogits:
      task.kind = wire::TaskKind::kLogits;
      task.piece = id.piece;
      fill_logits_range(state, id, task);
      break;
    case Stage::kEvaluate:
      task.kind = wire::TaskKind::kEvaluate;
      if (id.subject != Subject::kTeacher) append_files(state, TaskId::assemble(), task.inputs);
      if (id.subject == Subject::kLora) append_files(state, TaskId::finetune(), task.inputs);
      break;
    case Stage::kFinetune:
    case Stage::kAssemble:
      task.kind = wire::TaskKind::kFinetune;
      append_files(state, TaskId::assemble(), task.inputs);
      for (int piece = 0; piece < geometry.num_logit_pieces; ++piece)
        append_files(state, TaskId::logits(piece), task.inputs);
      break;
  }
  return task;
}

}  // namespace hedgerow::coordinator
