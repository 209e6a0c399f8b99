#include "coordinator/wire/stage_start.hpp"

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/json/fields.hpp"

namespace hedgerow::wire {

template <typename Visitor, storage::Is<StageRequest> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("launch", m.launch);
  visitor.field("host", m.host);
  visitor.field("ranks", m.ranks);
  visitor.field("beat", m.heartbeat_count);
}
template <typename Visitor, storage::Is<StageStart> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("launch", m.launch);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("student", m.student);
  visitor.field("endpoint", m.endpoint);
  visitor.field("threads", m.threads);
  visitor.optional_field("mesh", m.mesh);
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "stage/1";
constexpr std::uint64_t kMaxBytes = 1U << 16;

template <typename T>
std::optional<T> read(const fs::path& path) {
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return std::nullopt;
  try {
    const json file = storage::parse_document(storage::read_text(path, kMaxBytes));
    if (storage::string_field(file, "format") != kFormat) return std::nullopt;
    return storage::fields_from_json<T>(file);
  } catch (const storage::Error&) {
    return std::nullopt;
  }
}

template <typename T>
void write(const fs::path& path, const T& value) {
  json file = storage::fields_to_json(value);
  file["format"] = kFormat;
  storage::write_atomically(path, file.dump(2) + "\n");
}

}  // namespace

std::optional<StageRequest> read_stage_request(const storage::RunLayout& layout) {
  return read<StageRequest>(layout.stage_request_file());
}

std::optional<StageStart> read_stage_start(const storage::RunLayout& layout) {
  return read<StageStart>(layout.stage_start_file());
}

void write_stage_request(const storage::RunLayout& layout, const StageRequest& request) {
  write(layout.stage_request_file(), request);
}

void write_stage_start(const storage::RunLayout& layout, const StageStart& start) {
  write(layout.stage_start_file(), start);
}

void withdraw_stage_request(const storage::RunLayout& layout, const std::string& launch) {
  const auto request = read_stage_request(layout);
  std::error_code ignored;
  if (request && request->launch == launch) fs::remove(layout.stage_request_file(), ignored);
}

void withdraw_stage_start(const storage::RunLayout& layout) {
  std::error_code ignored;
  fs::remove(layout.stage_start_file(), ignored);
}

}  // namespace hedgerow::wire
