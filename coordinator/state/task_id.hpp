// The name of a task: what the journal, status, explain and logs call it. Stable over restarts and
// retries; an attempt at it is named by its fencing token.
#pragma once

#include <compare>
#include <string>

#include "coordinator/wire/task.hpp"

namespace hedgerow::coordinator {

using Stage = wire::TaskKind;
using wire::Subject;
using wire::subject_from_string;
using wire::to_string;

// Small: a run may have a hundred thousand tasks, and each is named several times.
struct TaskId {
  Stage stage = Stage::kCapture;
  int block = -1;  // capture, transfer
  int piece = -1;  // capture: which range of shards of boundary block + 1; logits; evaluate
  Subject subject = Subject::kNone;  // evaluate

  static TaskId capture(int block, int piece) {
    return {Stage::kCapture, block, piece, Subject::kNone};
  }
  static TaskId transfer(int block) { return {Stage::kTransfer, block, -1, Subject::kNone}; }
  static TaskId assemble() { return {Stage::kAssemble, -1, -1, Subject::kNone}; }
  static TaskId logits(int piece) { return {Stage::kLogits, -1, piece, Subject::kNone}; }
  static TaskId finetune() { return {Stage::kFinetune, -1, -1, Subject::kNone}; }
  // With a piece some of the sequences; without one what is put together from the pieces, or all
  // of it in a run whose evaluations have none.
  static TaskId evaluate(Subject subject, int piece = -1) {
    return {Stage::kEvaluate, -1, piece, subject};
  }

  auto operator<=>(const TaskId&) const = default;
};
static_assert(sizeof(TaskId) == 16);

// "capture/b0003/p00", "transfer/b0003", "assemble", "logits/p00", "finetune", "evaluate/teacher",
// "evaluate/teacher/p00".
[[nodiscard]] std::string to_string(const TaskId& id);
[[nodiscard]] TaskId task_id_from_string(const std::string& text);  // Throws kCorrupt
// As storage/json/fields.hpp reads what is written as a word. Throws kCorrupt.
inline void from_word(const std::string& word, TaskId& id) { id = task_id_from_string(word); }

}  // namespace hedgerow::coordinator
