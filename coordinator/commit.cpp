#include "coordinator/commit.hpp"

#include <algorithm>
#include <filesystem>

#include "storage/error.hpp"
#include "storage/file.hpp"
#include "storage/hash.hpp"
#include "storage/hidden_shard.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;
using storage::RunLayout;

void check_size(const fs::path& path, const storage::FileRecord& file) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) throw storage::system_error("stat", path.string(), error.value());
  if (size == file.size) return;
  throw Error(ErrorKind::kCorrupt,
              path.string() + ": " + std::to_string(size) + " bytes, the worker announced " +
                  std::to_string(file.size));
}

// Only on the way of a repeated message, so reading the whole file is no burden.
void check_hash(const fs::path& path, const storage::FileRecord& file) {
  if (path.extension() == ".h5") {
    static_cast<void>(
        storage::ShardReader(path, file));  // throws kCorrupt unless the root hash fits
    return;
  }
  const storage::Hash128 found = storage::hash_file(path);
  if (found == file.root_hash) return;
  throw Error(
      ErrorKind::kCorrupt,
      path.string() + ": hash " + found.hex() + ", the worker announced " + file.root_hash.hex());
}

}  // namespace

void make_directories(const fs::path& directory) {
  std::error_code error;
  if (fs::create_directories(directory, error)) storage::sync_directory(directory.parent_path());
  if (error) throw storage::system_error("create directory", directory.string(), error.value());
}

void commit_file(const RunLayout& layout, std::uint64_t token, const storage::FileRecord& file) {
  const fs::path to = layout.resolve(file.name);
  const fs::path from = layout.root() / RunLayout::attempt_directory(token) / to.filename();
  if (fs::exists(from)) {
    check_size(from, file);
    make_directories(to.parent_path());
    storage::publish(from, to);
    return;
  }
  if (!fs::exists(to)) {
    throw Error(ErrorKind::kNotFound,
                "neither " + from.string() + " nor " + to.string() + " exists");
  }
  check_size(to, file);
  check_hash(to, file);
}

void check_attempt_file(const RunLayout& layout,
                        std::uint64_t token,
                        const storage::FileRecord& file) {
  const std::string prefix = RunLayout::attempt_directory(token) + "/";
  if (file.name.rfind(prefix, 0) != 0) {
    throw Error(ErrorKind::kCorrupt, "checkpoint '" + file.name + "' does not lie under " + prefix);
  }
  const fs::path path = layout.resolve(file.name);
  if (!fs::exists(path)) throw Error(ErrorKind::kNotFound, path.string() + " does not exist");
  check_size(path, file);
}

std::string shard_name(const TaskId& id, int shard, std::uint64_t token) {
  return RunLayout::hidden_shard(id.block + 1, shard, token);
}

std::vector<std::string> output_names(const TaskId& id, std::uint64_t token) {
  switch (id.stage) {
    case Stage::kCapture:
      return {};
    case Stage::kTransfer:
      return {RunLayout::block_artifact(id.block, token)};
    case Stage::kAssemble:
      return {RunLayout::student_directory(token) + "/feature_maps.safetensors",
              RunLayout::student_directory(token) + "/hedgerow.json"};
    case Stage::kFinetune:
      return {RunLayout::adapter_directory(token) + "/adapter_config.json",
              RunLayout::adapter_directory(token) + "/adapter_model.safetensors"};
    case Stage::kEvaluate:
      return {RunLayout::evaluation(id.subject, token)};
  }
  return {};
}

void delete_dropped_shards(const RunLayout& layout, const State& state) {
  for (const auto& boundary : state.shards) {
    for (const ShardRecord& shard : boundary) {
      if (shard.state != ShardState::kDropped || shard.file.name.empty()) continue;
      std::error_code ignored;  // gone already, or on the next start
      fs::remove(layout.resolve(shard.file.name), ignored);
    }
  }
}

namespace {

// Into `largest`, the token of every name below `directory`. A directory of ours that cannot be
// read may hide one, so it is an error; other people's are none of our business.
void largest_token_below(const fs::path& directory, const fs::path& root, std::uint64_t& largest) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().lexically_relative(root).string();
    largest = std::max(largest, RunLayout::token_in_name(name));
    std::error_code unknown;  // gone meanwhile, or a link to nowhere: its name is all there is
    const bool is_ours = RunLayout::is_own_directory(name);
    if (is_ours && entry->symlink_status(unknown).type() == fs::file_type::directory)
      largest_token_below(entry->path(), root, largest);
  }
  // Deleted while we looked: 'hedgerow clean' is at work.
  if (error && error != std::errc::no_such_file_or_directory)
    throw storage::system_error("list", directory.string(), error.value());
}

}  // namespace

std::uint64_t largest_token_on_disk(const RunLayout& layout) {
  std::uint64_t largest = 0;
  for (const char* folder : {"attempts", "hidden", "blocks", "student", "adapter", "evaluate"})
    largest_token_below(layout.root() / folder, layout.root(), largest);
  return largest;
}

}  // namespace hedgerow::coordinator
