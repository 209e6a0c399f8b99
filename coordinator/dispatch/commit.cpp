#include "coordinator/dispatch/commit.hpp"

#include <algorithm>
#include <filesystem>

#include "coordinator/dispatch/task_kinds.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;
using storage::RunLayout;

void check_size(const fs::path& path, const storage::FileRecord& file, const storage::Disk& disk) {
  const std::uint64_t size = disk.size_of(path);
  if (size == file.size) return;
  throw Error(ErrorKind::kCorrupt,
              path.string() + ": " + std::to_string(size) + " bytes, the worker announced " +
                  std::to_string(file.size));
}

}  // namespace

void commit_file(const RunLayout& layout,
                 std::uint64_t token,
                 const storage::FileRecord& file,
                 storage::Disk& disk) {
  const fs::path to = layout.resolve(file.name);
  const fs::path from = layout.resolve(RunLayout::attempt_file(token, file.name));
  if (disk.exists(from)) {
    check_size(from, file, disk);
    disk.make_directories(to.parent_path());
    disk.publish(from, to);
    return;
  }
  if (!disk.exists(to)) {
    throw Error(ErrorKind::kNotFound,
                "neither " + from.string() + " nor " + to.string() + " exists");
  }
  // Only on the way of a repeated message, so reading the whole file is no burden.
  check_size(to, file, disk);
  disk.verify(to, file);
  // The coordinator that renamed it may have died before its new name was durable.
  disk.sync_directory(to.parent_path());
}

void check_attempt_file(const RunLayout& layout,
                        std::uint64_t token,
                        const storage::FileRecord& file,
                        const storage::Disk& disk) {
  const std::string prefix = RunLayout::attempt_directory(token) + "/";
  if (file.name.rfind(prefix, 0) != 0) {
    throw Error(ErrorKind::kCorrupt, "checkpoint '" + file.name + "' does not lie under " + prefix);
  }
  const fs::path path = layout.resolve(file.name);
  if (!disk.exists(path)) throw Error(ErrorKind::kNotFound, path.string() + " does not exist");
  check_size(path, file, disk);
}

std::optional<FoundCheckpoint> newest_checkpoint(const RunLayout& layout,
                                                 std::uint64_t token,
                                                 const storage::Disk& disk) {
  const std::string directory = RunLayout::attempt_directory(token);
  const auto entries = disk.list(layout.root() / directory);
  if (!entries) return std::nullopt;
  std::optional<FoundCheckpoint> newest;
  for (const storage::DiskEntry& entry : *entries) {
    const auto said = RunLayout::parse_checkpoint(entry.name);
    if (!said || entry.is_directory || (newest && newest->step >= said->step)) continue;
    newest = FoundCheckpoint{said->step, {directory + "/" + entry.name, 0, said->hash}};
  }
  if (newest) newest->file.size = disk.size_of(layout.resolve(newest->file.name));
  return newest;
}

std::string shard_name(const TaskId& id, int shard, std::uint64_t token) {
  return RunLayout::hidden_shard(id.block + 1, shard, token);
}

bool are_outputs(const TaskId& id,
                 std::uint64_t token,
                 const std::vector<storage::FileRecord>& files) {
  std::vector<std::string> announced;
  for (const storage::FileRecord& file : files) announced.push_back(file.name);
  std::sort(announced.begin(), announced.end());
  std::vector<std::string> names = kind_of(id.stage).outputs(id, token);
  if (announced == names) return true;
  for (std::string& name : kind_of(id.stage).optional_outputs(token))
    names.push_back(std::move(name));
  return announced == names;
}

void delete_dropped_shards(const RunLayout& layout,
                           const State& state,
                           int boundary,
                           storage::Disk& disk) {
  for (std::size_t b = 1; b < state.shards.size(); ++b) {
    if (boundary != 0 && b != static_cast<std::size_t>(boundary)) continue;
    for (const ShardRecord& shard : state.shards[b]) {
      if (shard.state == ShardState::kDropped && !shard.file.name.empty())
        disk.remove(layout.resolve(shard.file.name));
    }
  }
}

void delete_dropped_logits(const RunLayout& layout, const State& state, storage::Disk& disk) {
  if (!state.geometry) return;
  for (int piece = 0; piece < state.geometry->num_logit_pieces; ++piece) {
    const TaskRecord& task = state.task(TaskId::logits(piece));
    if (task.state != TaskState::kDropped) continue;
    for (const storage::FileRecord& file : task.files) disk.remove(layout.resolve(file.name));
  }
}

namespace {

// Into `largest`, the token of every name below root / `directory`. A directory of ours that cannot
// be read may hide one, so it is an error; other people's are none of our business. One that is
// gone was deleted while we looked: 'hedgerow clean' is at work.
void largest_token_below(const RunLayout& layout,
                         const std::string& directory,
                         const storage::Disk& disk,
                         std::uint64_t& largest) {
  const auto entries = disk.list(layout.root() / directory);
  if (!entries) return;
  for (const storage::DiskEntry& entry : *entries) {
    const std::string name = directory + "/" + entry.name;
    largest = std::max(largest, RunLayout::token_in_name(name));
    if (entry.is_directory && RunLayout::is_own_directory(name))
      largest_token_below(layout, name, disk, largest);
  }
}

}  // namespace

std::uint64_t largest_token_on_disk(const RunLayout& layout, const storage::Disk& disk) {
  std::uint64_t largest = 0;
  for (const char* folder :
       {"attempts", "hidden", "logits", "blocks", "student", "adapter", "evaluate"})
    largest_token_below(layout, folder, disk, largest);
  return largest;
}

}  // namespace hedgerow::coordinator
