#include "coordinator/wire/task.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::wire {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr std::string_view kSmallerForward =
    "begin a run with a smaller plan.sequences_per_forward or plan.layers_per_block";
constexpr std::string_view kShorter =
    "begin a run with a smaller plan.layers_per_block, or shorter sequences";
constexpr std::string_view kSmallerMicroBatch =
    "begin a run with a smaller finetune.sequences_per_micro_batch";
constexpr std::string_view kShorterTexts = "begin a run with shorter sequences in data.evaluate";

constexpr std::optional<TaskKind> kStays;

// A word of the journal is never renamed.
constexpr std::array<TaskKindRow, 6> kTaskKinds = {{
    {TaskKind::kCapture, "capture", true, false, kStays, kSmallerForward},
    {TaskKind::kTransfer, "transfer", true, true, kStays, kSmallerForward},
    {TaskKind::kAssemble, "assemble", false, false, kStays, "give it a smaller problem"},
    {TaskKind::kLogits, "logits", true, false, TaskKind::kFinetune, kShorter},
    {TaskKind::kFinetune, "finetune", false, true, kStays, kSmallerMicroBatch},
    {TaskKind::kEvaluate, "evaluate", true, false, kStays, kShorterTexts},
}};

constexpr std::array<std::pair<Subject, std::string_view>, 3> kSubjects = {{
    {Subject::kLora, "lora"},
    {Subject::kTeacher, "teacher"},
    {Subject::kTransfer, "transfer"},
}};

}  // namespace

std::span<const TaskKindRow> task_kinds() { return kTaskKinds; }
const TaskKindRow& row_of(TaskKind kind) { return kTaskKinds.at(static_cast<std::size_t>(kind)); }
bool is_pulled(TaskKind kind) { return row_of(kind).is_pulled; }
bool has_checkpoints(TaskKind kind) { return row_of(kind).has_checkpoints; }
std::optional<TaskKind> read_by(TaskKind kind) { return row_of(kind).read_by; }
std::string_view to_string(TaskKind kind) { return row_of(kind).word; }

void to_json(nlohmann::json& json, TaskKind kind) { json = to_string(kind); }

std::optional<TaskKind> task_kind_from(std::string_view word) {
  const auto* row = std::ranges::find(kTaskKinds, word, &TaskKindRow::word);
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

std::string_view to_string(Subject subject) {
  for (const auto& [value, word] : kSubjects) {
    if (value == subject) return word;
  }
  return "";
}

std::optional<Subject> subject_from_string(std::string_view word) {
  for (const auto& [value, name] : kSubjects) {
    if (name == word) return value;
  }
  return std::nullopt;
}

void from_word(std::string_view word, Subject& subject) {
  const std::optional<Subject> found = subject_from_string(word);
  if (!found) {
    throw Error(ErrorKind::kCorrupt,
                "journal: a run that evaluates '" + std::string(word.substr(0, 80)) +
                    "', expected lora, teacher or transfer");
  }
  subject = *found;
}

}  // namespace hedgerow::wire
