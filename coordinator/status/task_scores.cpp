#include "coordinator/status/task_scores.hpp"

#include <filesystem>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {

using nlohmann::json;

json read_task_scores(const storage::RunLayout& layout) {
  const std::filesystem::path path = layout.task_scores();
  if (!std::filesystem::exists(path)) return json::object();
  json scores = json::parse(storage::read_text(path), nullptr, /*allow_exceptions=*/false);
  if (!scores.is_object() || !scores.contains("tasks") || !scores["tasks"].is_object()) {
    throw storage::Error(
        storage::ErrorKind::kCorrupt,
        path.string() +
            ": not what 'hedgerow evaluate --tasks' writes; delete it and evaluate again");
  }
  return scores;
}

void record_task_scores(const storage::RunLayout& layout, const json& found) {
  json scores = read_task_scores(layout);
  scores["lm_eval"] = found.at("lm_eval");
  for (const auto& [name, task] : found.at("tasks").items()) scores["tasks"][name] = task;
  std::filesystem::create_directories(layout.task_scores().parent_path());
  storage::write_atomically(layout.task_scores(), scores.dump(2) + "\n");
}

}  // namespace hedgerow::coordinator
