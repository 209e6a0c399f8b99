#include "coordinator/wire/task.hpp"

#include <algorithm>
#include <array>

#include "storage/base/error.hpp"

namespace hedgerow::wire {
namespace {

using storage::Error;
using storage::ErrorKind;

// A word of the journal is never renamed.
constexpr std::array<TaskKindWord, 6> kTaskKinds = {{
    {TaskKind::kCapture, "capture", true, false},
    {TaskKind::kTransfer, "transfer", true, true},
    {TaskKind::kAssemble, "assemble", false, false},
    {TaskKind::kLogits, "logits", true, false},
    {TaskKind::kFinetune, "finetune", false, true},
    {TaskKind::kEvaluate, "evaluate", true, false},
}};

const TaskKindWord& row_of(TaskKind kind) { return kTaskKinds.at(static_cast<std::size_t>(kind)); }

}  // namespace

std::span<const TaskKindWord> task_kind_words() { return kTaskKinds; }
bool is_pulled(TaskKind kind) { return row_of(kind).is_pulled; }
bool has_checkpoints(TaskKind kind) { return row_of(kind).has_checkpoints; }
std::string_view to_string(TaskKind kind) { return row_of(kind).word; }

void to_json(nlohmann::json& json, TaskKind kind) { json = to_string(kind); }

std::optional<TaskKind> task_kind_from(std::string_view word) {
  const auto* row = std::ranges::find(kTaskKinds, word, &TaskKindWord::word);
  return row == kTaskKinds.end() ? std::nullopt : std::optional(row->kind);
}

void from_word(std::string_view word, TaskKind& kind) {
  if (const std::optional<TaskKind> found = task_kind_from(word)) {
    kind = *found;
    return;
  }
  throw Error(ErrorKind::kCorrupt,
              "message: unknown task kind '" + std::string(word.substr(0, 40)) + "'");
}

}  // namespace hedgerow::wire
