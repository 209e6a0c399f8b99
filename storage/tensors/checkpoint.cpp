#include "storage/tensors/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/json/strict_json.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::storage {
namespace {

constexpr const char* kFormat = "checkpoint/1";
constexpr const char* kFormatKey = "format";
constexpr const char* kStateKey = "state";

void verify_record(const std::filesystem::path& path, const FileRecord& expected) {
  const std::uint64_t size = File::open_read(path).size();
  if (size != expected.size) {
    throw Error(
        ErrorKind::kCorrupt,
        fmt::format("checkpoint {}: it has {} bytes, the journal recorded {}; the task goes "
                    "back to an earlier one",
                    path.string(),
                    size,
                    expected.size));
  }
  if (const Hash128 found = hash_file(path); found != expected.root_hash) {
    throw Error(
        ErrorKind::kCorrupt,
        fmt::format("checkpoint {}: hash {} != recorded {}; the task goes back to an earlier "
                    "one",
                    path.string(),
                    found.hex(),
                    expected.root_hash.hex()));
  }
}

// JSON has neither; nlohmann writes null for both, and a resumed run would differ without a word.
bool has_only_finite_numbers(const nlohmann::json& value) {
  if (value.is_number_float()) return std::isfinite(value.get<double>());
  return std::all_of(value.begin(), value.end(), [](const nlohmann::json& part) {
    return part.is_structured() || part.is_number_float() ? has_only_finite_numbers(part) : true;
  });
}

}  // namespace

FileRecord write_checkpoint(const RunLayout& layout,
                            FencingToken token,
                            std::int64_t step,
                            const Checkpoint& checkpoint,
                            int part) {
  const std::filesystem::path path = layout.resolve(
      fmt::format("{}/{}.s{}.partial",
                  RunLayout::attempt_directory(token),
                  part == kWholeCheckpoint ? "checkpoint" : fmt::format("part{}", part),
                  step));
  std::map<std::string, TensorView> views;
  for (const auto& [name, tensor] : checkpoint.tensors)
    views.emplace(name, TensorView{tensor.dtype, tensor.shape, tensor.bytes});
  nlohmann::json state = checkpoint.state.is_null() ? nlohmann::json::object() : checkpoint.state;
  if (!state.is_object() || !has_only_finite_numbers(state)) {
    throw Error(ErrorKind::kInternal,
                fmt::format("checkpoint {}: its state is not a JSON object of finite numbers",
                            path.string()));
  }
  state[kFormatKey] = kFormat;
  write_safetensors(path, views, {{kFormatKey, kFormat}, {kStateKey, state.dump()}});
  FileRecord record{"", std::filesystem::file_size(path), hash_file(path)};
  record.name = part == kWholeCheckpoint
                    ? RunLayout::checkpoint(token, step, record.root_hash)
                    : RunLayout::checkpoint_part(token, step, part, record.root_hash);
  publish(path, layout.resolve(record.name));
  return record;
}

Checkpoint read_checkpoint(const std::filesystem::path& path, const FileRecord& expected) {
  if (expected.size != 0) verify_record(path, expected);
  const SafetensorsFile file(path);
  const auto format = file.metadata().find(kFormatKey);
  const auto state = file.metadata().find(kStateKey);
  if (format == file.metadata().end() || state == file.metadata().end() ||
      format->second != kFormat) {
    throw Error(
        ErrorKind::kCorrupt,
        fmt::format("checkpoint {}: its metadata does not say format '{}'; it is no checkpoint, "
                    "or one of another version",
                    path.string(),
                    kFormat));
  }
  Checkpoint checkpoint;
  checkpoint.state = parse_strict_json(state->second, path.string());
  if (!checkpoint.state.is_object() || checkpoint.state[kFormatKey] != kFormat) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("checkpoint {}: its state is damaged", path.string()));
  }
  for (const auto& [name, view] : file.tensors()) {
    checkpoint.tensors.emplace(
        name, OwnedTensor{view.dtype, view.shape, {view.bytes.begin(), view.bytes.end()}});
  }
  return checkpoint;
}

}  // namespace hedgerow::storage
