#include "coordinator/state/task_id.hpp"

#include <array>
#include <cstdio>
#include <string_view>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

std::string numbered(char letter, int width, int number) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "/%c%0*d", letter, width, number);
  return text.data();
}

}  // namespace

std::string to_string(const TaskId& id) {
  std::string text(to_string(id.stage));
  if (id.block >= 0) text += numbered('b', 4, id.block);
  if (id.subject != Subject::kNone) text.append("/").append(to_string(id.subject));
  if (id.piece >= 0) text += numbered('p', 2, id.piece);
  return text;
}

TaskId task_id_from_string(const std::string& text) {
  TaskId id;
  int block = -1;
  int piece = -1;
  if (std::sscanf(text.c_str(), "capture/b%d/p%d", &block, &piece) == 2) {
    id = TaskId::capture(block, piece);
  } else if (std::sscanf(text.c_str(), "transfer/b%d", &block) == 1) {
    id = TaskId::transfer(block);
  } else if (text == "assemble") {
    id = TaskId::assemble();
  } else if (std::sscanf(text.c_str(), "logits/p%d", &piece) == 1) {
    id = TaskId::logits(piece);
  } else if (text == "finetune") {
    id = TaskId::finetune();
  } else if (text.rfind("evaluate/", 0) == 0) {
    const std::string_view rest = std::string_view(text).substr(9);
    std::sscanf(text.c_str(), "evaluate/%*[a-z]/p%d", &piece);
    id = TaskId::evaluate(
        subject_from_string(rest.substr(0, rest.find('/'))).value_or(Subject::kNone), piece);
  }
  // Spelled back, so that "capture/b1/p1 and more" is no name.
  if (to_string(id) != text) {
    throw storage::Error(storage::ErrorKind::kCorrupt,
                         "'" + text.substr(0, 80) + "' names no task");
  }
  return id;
}

}  // namespace hedgerow::coordinator
