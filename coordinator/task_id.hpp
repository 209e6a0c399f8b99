// The name of a task: what the journal, status, explain and logs call it. Stable over restarts and
// retries; an attempt at it is named by its fencing token.
#pragma once

#include <compare>
#include <string>
#include <string_view>

namespace hedgerow::coordinator {

enum class Stage { kCapture, kTransfer, kAssemble, kFinetune, kEvaluate };

[[nodiscard]] std::string_view to_string(Stage stage);  // "capture", "transfer", ...

struct TaskId {
  Stage stage = Stage::kCapture;
  int block = -1;       // capture, transfer
  int piece = -1;       // capture: which range of shards of boundary block + 1
  std::string subject;  // evaluate: teacher | transfer | lora

  static TaskId capture(int block, int piece) { return {Stage::kCapture, block, piece, {}}; }
  static TaskId transfer(int block) { return {Stage::kTransfer, block, -1, {}}; }
  static TaskId assemble() { return {Stage::kAssemble, -1, -1, {}}; }
  static TaskId finetune() { return {Stage::kFinetune, -1, -1, {}}; }
  static TaskId evaluate(std::string subject) {
    return {Stage::kEvaluate, -1, -1, std::move(subject)};
  }

  auto operator<=>(const TaskId&) const = default;
};

// "capture/b0003/p00", "transfer/b0003", "assemble", "finetune", "evaluate/teacher".
[[nodiscard]] std::string to_string(const TaskId& id);
[[nodiscard]] TaskId task_id_from_string(const std::string& text);  // Throws kCorrupt

}  // namespace hedgerow::coordinator
