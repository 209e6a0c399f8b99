#include "coordinator/state/task_graph.hpp"

namespace hedgerow::coordinator {
namespace {

const TaskRecord* record_of(const State& state, const TaskId& id) {
  const auto found = state.tasks.find(id);
  return found == state.tasks.end() ? nullptr : &found->second;
}

// A run without the task waits for nothing of it.
bool is_done(const State& state, const TaskId& id) {
  const TaskRecord* task = record_of(state, id);
  return task == nullptr || task->state == TaskState::kDone;
}

bool is_settled(const State& state, const TaskId& id) {
  const TaskRecord* task = record_of(state, id);
  return task == nullptr || task->state == TaskState::kDone || task->state == TaskState::kDropped ||
         task->state == TaskState::kQuarantined;
}

std::string needs_boundary(const State& state, int boundary) {
  if (boundary_complete(state, boundary)) return "";
  return "boundary " + std::to_string(boundary) + " is not complete";
}

std::string needs_piece(const State& state, int boundary, int piece) {
  if (piece_complete(state, boundary, piece)) return "";
  return "shards of boundary " + std::to_string(boundary) + " are missing";
}

std::string needs_transfers(const State& state) {
  const int open =
      state.index.total(Stage::kTransfer) - state.index.count(Stage::kTransfer, TaskState::kDone);
  return open == 0 ? "" : std::to_string(open) + " blocks are not transferred yet";
}

std::string needs_student(const State& state) {
  return is_done(state, TaskId::assemble()) ? "" : "the student is not assembled yet";
}

std::string needs_of_finetune(const State& state) {
  if (std::string wait = needs_student(state); !wait.empty()) return wait;
  // Its ranks take the machine from a worker at work: one that has begun ends first. Those that
  // have not begun wait in their turn, since they need one GPU and the ranks all.
  if (state.index.count(Stage::kEvaluate, TaskState::kGranted) > 0) {
    for (const auto& [token, id] : state.grants) {
      if (id.stage == Stage::kEvaluate) return to_string(id) + " is not done yet";
    }
  }
  const int open =
      state.geometry->num_logit_pieces - state.index.count(Stage::kLogits, TaskState::kDone);
  return open > 0 ? std::to_string(open) + " pieces of the teacher's logits are not there yet" : "";
}

std::string needs_of_evaluation(const State& state, const TaskId& id) {
  const Subject subject = id.subject;
  const int pieces = state.geometry->num_evaluate_pieces;
  if (pieces > 0 && id.piece < 0) {
    int open = 0;
    for (int piece = 0; piece < pieces; ++piece)
      open += is_done(state, TaskId::evaluate(subject, piece)) ? 0 : 1;
    return open == 0 ? "" : std::to_string(open) + " of its pieces are not evaluated yet";
  }
  if (subject == Subject::kLora && !is_done(state, TaskId::finetune()))
    return "finetune is not done yet";
  if (subject == Subject::kTransfer) {
    if (std::string wait = needs_student(state); !wait.empty()) return wait;
  }
  // While blocks are trained a worker may be idle. From there on all wait for the ranks, and then
  // the subjects are evaluated beside one another.
  const bool waits_for_ranks =
      needs_transfers(state).empty() && !is_settled(state, TaskId::finetune());
  return waits_for_ranks ? "finetune comes first" : "";
}

}  // namespace

std::vector<TaskId> tasks_of(const Geometry& geometry) {
  std::vector<TaskId> tasks;
  for (int block = 0; block < geometry.last_boundary(); ++block) {
    for (int piece = 0; piece < geometry.num_pieces(); ++piece)
      tasks.push_back(TaskId::capture(block, piece));
  }
  for (int block = 0; block < geometry.num_blocks(); ++block) {
    if (geometry.trains(block)) tasks.push_back(TaskId::transfer(block));
  }
  for (int piece = 0; piece < geometry.num_logit_pieces; ++piece)
    tasks.push_back(TaskId::logits(piece));
  for_each_late_task(geometry, [&](const TaskId& id) { tasks.push_back(id); });
  return tasks;
}

std::string waits_for(const State& state, const TaskRecord& task) {
  if (task.state != TaskState::kPending) return "";
  const TaskId& id = task.id;
  switch (id.stage) {
    case Stage::kCapture:
      return needs_piece(state, id.block, id.piece);
    case Stage::kTransfer:
      return needs_boundary(state, id.block);
    case Stage::kAssemble:
      return needs_transfers(state);
    case Stage::kLogits:
      return state.geometry->logits_from_boundary
                 ? needs_piece(state, state.geometry->last_boundary(), id.piece)
                 : "";
    case Stage::kFinetune:
      return needs_of_finetune(state);
    case Stage::kEvaluate:
      return needs_of_evaluation(state, id);
  }
  return "";
}

bool is_ready(const State& state, const TaskRecord& task) {
  return task.state == TaskState::kPending && waits_for(state, task).empty();
}

}  // namespace hedgerow::coordinator
