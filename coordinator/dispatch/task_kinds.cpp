#include "coordinator/dispatch/task_kinds.hpp"

#include <array>

#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::RunLayout;
using Names = std::vector<std::string>;

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

void fill_capture(const State& state, const TaskId& id, wire::Task& task) {
  const ShardRange run = first_missing_run(state, id);
  task.first_shard = run.first;
  task.num_shards = run.count;
  task.inputs = shard_files(state, id.block, run.first, run.count);
}

void fill_transfer(const State& state, const TaskId& id, wire::Task& task) {
  task.inputs = shard_files(state, id.block, 0, state.geometry->num_shards);
}

// The layers behind the last boundary and its shards, or all layers.
void fill_logits(const State& state, const TaskId& id, wire::Task& task) {
  const Geometry& geometry = *state.geometry;
  task.piece = id.piece;
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

void fill_finetune(const State& state, const TaskId&, wire::Task& task) {
  append_files(state, TaskId::assemble(), task.inputs);
  for (int piece = 0; piece < state.geometry->num_logit_pieces; ++piece)
    append_files(state, TaskId::logits(piece), task.inputs);
}

void fill_evaluate(const State& state, const TaskId& id, wire::Task& task) {
  task.piece = id.piece;
  task.num_pieces = state.geometry->num_evaluate_pieces;
  if (task.num_pieces > 0 && id.piece < 0) {
    for (int piece = 0; piece < task.num_pieces; ++piece)
      append_files(state, TaskId::evaluate(id.subject, piece), task.inputs);
    return;
  }
  if (id.subject != Subject::kTeacher) append_files(state, TaskId::assemble(), task.inputs);
  if (id.subject == Subject::kLora) append_files(state, TaskId::finetune(), task.inputs);
}

Names no_outputs(const TaskId&, std::uint64_t) { return {}; }
Names no_more(std::uint64_t) { return {}; }

Names block_artifact(const TaskId& id, std::uint64_t token) {
  return {RunLayout::block_artifact(id.block, token)};
}

Names student(const TaskId&, std::uint64_t token) {
  const std::string directory = RunLayout::student_directory(token);
  return {directory + "/feature_maps.safetensors",
          directory + "/hedgerow.json",
          directory + "/provenance.json"};
}

Names logits_file(const TaskId& id, std::uint64_t token) {
  return {RunLayout::logits(id.piece, token)};
}

Names adapter(const TaskId&, std::uint64_t token) {
  const std::string directory = RunLayout::adapter_directory(token);
  return {directory + "/adapter_config.json", directory + "/adapter_model.safetensors"};
}

Names trained_parameters(std::uint64_t token) {
  return {RunLayout::adapter_directory(token) + "/trained_parameters.safetensors"};
}

Names evaluation(const TaskId& id, std::uint64_t token) {
  const std::string subject(to_string(id.subject));
  if (id.piece >= 0) return {RunLayout::evaluation_piece(subject, id.piece, token)};
  return {RunLayout::evaluation(subject, token)};
}

// By Stage.
constexpr std::array<TaskKind, kNumStages> kKinds = {{
    {Stage::kCapture, &MemoryNeeds::capture, no_outputs, no_more, fill_capture},
    {Stage::kTransfer, &MemoryNeeds::transfer, block_artifact, no_more, fill_transfer},
    {Stage::kAssemble, nullptr, student, no_more, nullptr},
    {Stage::kLogits, &MemoryNeeds::logits, logits_file, no_more, fill_logits},
    {Stage::kFinetune, &MemoryNeeds::finetune, adapter, trained_parameters, fill_finetune},
    {Stage::kEvaluate, &MemoryNeeds::evaluate, evaluation, no_more, fill_evaluate},
}};

}  // namespace

const TaskKind& kind_of(Stage stage) { return kKinds.at(static_cast<std::size_t>(stage)); }

}  // namespace hedgerow::coordinator
