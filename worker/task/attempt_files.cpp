#include "worker/task/attempt_files.hpp"

#include <span>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::worker {

void AttemptFiles::append_metrics(const std::string& lines) {
  storage::File file =
      storage::File::open_append(attempt_path(layout_, task_.fencing_token, "metrics.jsonl"));
  file.write_all(std::as_bytes(std::span(lines)));
  file.close();
}

void AttemptFiles::write_checkpoint(const storage::Checkpoint& checkpoint,
                                    std::int64_t step,
                                    const std::function<void()>& written) {
  const storage::FileRecord record =
      storage::write_checkpoint(layout_, task_.fencing_token, step, checkpoint);
  written();
  publish_checkpoint(record, step);
}

void AttemptFiles::publish_checkpoint(const storage::FileRecord& record,
                                      std::int64_t step,
                                      const std::vector<std::string>& parts) {
  context_.publish_checkpoint(record, step);
  Written written{step, {layout_.resolve(record.name)}};
  for (const std::string& part : parts) written.files.push_back(layout_.resolve(part));
  checkpoints_.push_back(std::move(written));
  while (checkpoints_.size() > 1 && checkpoints_.front().step < context_.committed_step()) {
    for (const auto& file : checkpoints_.front().files) std::filesystem::remove(file);
    checkpoints_.erase(checkpoints_.begin());
  }
}

void resume_from_checkpoint(
    const storage::RunLayout& layout,
    const wire::Task& task,
    const std::string& what_starts_again,
    const std::vector<CheckpointMatch>& matches,
    const std::function<void(const storage::Checkpoint&, const RefuseCheckpoint&)>& restore) {
  const storage::Checkpoint checkpoint =
      storage::read_checkpoint(layout.resolve(task.resume->name), *task.resume);
  const RefuseCheckpoint refuse = [&](const std::string& what) {
    throw storage::Error(
        storage::ErrorKind::kCorrupt,
        task.resume->name + ": " + what + "; " + what_starts_again + " starts again without it");
  };
  try {
    for (const CheckpointMatch& match : matches) {
      const nlohmann::json& found = checkpoint.state.at(match.key);
      if (found == match.expected) continue;
      refuse(match.otherwise + (match.otherwise.ends_with(' ') ? found.dump() : ""));
    }
    restore(checkpoint, refuse);
  } catch (const nlohmann::json::exception& error) {
    refuse(std::string("not a checkpoint of it: ") + error.what());
  }
}

}  // namespace hedgerow::worker
