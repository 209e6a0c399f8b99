#include "coordinator/wire/task.hpp"

#include <array>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::wire {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr std::array<std::pair<TaskKind, std::string_view>, 6> kTaskKinds = {{
    {TaskKind::kCapture, "capture"},
    {TaskKind::kTransfer, "transfer"},
    {TaskKind::kAssemble, "assemble"},
    {TaskKind::kLogits, "logits"},
    {TaskKind::kFinetune, "finetune"},
    {TaskKind::kEvaluate, "evaluate"},
}};

}  // namespace

std::string_view to_string(TaskKind kind) {
  for (const auto& [value, word] : kTaskKinds) {
    if (value == kind) return word;
  }
  return "capture";
}

void from_word(std::string_view word, TaskKind& kind) {
  for (const auto& [value, known] : kTaskKinds) {
    if (known != word || value == TaskKind::kAssemble) continue;
    kind = value;
    return;
  }
  throw Error(ErrorKind::kCorrupt,
              "message: unknown task kind '" + std::string(word.substr(0, 40)) + "'");
}

}  // namespace hedgerow::wire
