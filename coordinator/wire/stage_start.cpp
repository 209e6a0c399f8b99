#include "coordinator/wire/stage_start.hpp"

#include <functional>

#include "coordinator/wire/json_fields.hpp"
#include "storage/base/error.hpp"
#include "storage/base/file.hpp"

namespace hedgerow::wire {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "stage/1";
constexpr std::uint64_t kMaxBytes = 1U << 16;

template <typename T>
std::optional<T> read(const fs::path& path, const std::function<T(const json&)>& parse) {
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return std::nullopt;
  try {
    const json file = parse_document(storage::read_text(path, kMaxBytes));
    if (string_field(file, "format") != kFormat) return std::nullopt;
    return parse(file);
  } catch (const storage::Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<StageRequest> read_stage_request(const storage::RunLayout& layout) {
  return read<StageRequest>(layout.stage_request_file(), [](const json& file) {
    return StageRequest{string_field(file, "launch"),
                        string_field(file, "host"),
                        int_field(file, "ranks"),
                        uint_field(file, "beat")};
  });
}

std::optional<StageStart> read_stage_start(const storage::RunLayout& layout) {
  return read<StageStart>(layout.stage_start_file(), [](const json& file) {
    return StageStart{string_field(file, "launch"),
                      uint_field(file, "fencing_token"),
                      string_field(file, "student"),
                      string_field(file, "endpoint"),
                      int_field(file, "threads")};
  });
}

void write_stage_request(const storage::RunLayout& layout, const StageRequest& request) {
  const json file = {{"format", kFormat},
                     {"launch", request.launch},
                     {"host", request.host},
                     {"ranks", request.ranks},
                     {"beat", request.beat}};
  storage::write_atomically(layout.stage_request_file(), file.dump(2) + "\n");
}

void write_stage_start(const storage::RunLayout& layout, const StageStart& start) {
  const json file = {{"format", kFormat},
                     {"launch", start.launch},
                     {"fencing_token", start.fencing_token},
                     {"student", start.student},
                     {"endpoint", start.endpoint},
                     {"threads", start.threads}};
  storage::write_atomically(layout.stage_start_file(), file.dump(2) + "\n");
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
