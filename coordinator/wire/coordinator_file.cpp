#include "coordinator/wire/coordinator_file.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "coordinator/wire/json_fields.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::wire {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "coordinator/1";
constexpr std::uint64_t kMaxBytes = 1U << 20;
constexpr int kLargestPort = 65535;

json process_json(const ProcessId& process) {
  return {{"pid", process.pid}, {"start_ticks", process.start_ticks}};
}

ProcessId process_of(const json& in) {
  return {int_field(in, "pid"), uint_field(in, "start_ticks")};
}

}  // namespace

std::optional<ProcessId> process_with(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::stringstream text;
  text << file.rdbuf();
  // "pid (name) state ..."; the name may hold spaces and parentheses, so count from the last one.
  const std::string line = text.str();
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(name_end + 1));
  std::string word;
  rest >> word;
  if (word == "Z" || word == "X") return std::nullopt;
  for (int field = 4; field <= 22 && (rest >> word); ++field) {
    if (field == 22) return ProcessId{pid, std::stoull(word)};
  }
  return std::nullopt;
}

ProcessId this_process() { return process_with(::getpid()).value_or(ProcessId{::getpid(), 0}); }

bool is_alive(const ProcessId& process) {
  return process.pid > 0 && process_with(process.pid) == process;
}

std::vector<ChildRecord> orphans_of(const CoordinatorFile& file) {
  std::vector<ChildRecord> orphans;
  if (file.host != this_host() || is_alive(file.process)) return orphans;
  for (const ChildRecord& child : file.children) {
    if (is_alive(child.process)) orphans.push_back(child);
  }
  return orphans;
}

int port_of(const std::string& endpoint) {
  const std::size_t colon = endpoint.rfind(':');
  if (colon == std::string::npos) return 0;
  const char* const end = endpoint.data() + endpoint.size();
  int port = 0;
  const auto [rest, error] = std::from_chars(endpoint.data() + colon + 1, end, port);
  return error == std::errc() && rest == end && port > 0 && port <= kLargestPort ? port : 0;
}

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::optional<CoordinatorFile> read_coordinator_file(const std::filesystem::path& path,
                                                     const storage::Disk& disk) {
  if (!disk.exists(path)) return std::nullopt;
  try {
    const json in = parse_document(disk.read(path, kMaxBytes));
    if (string_field(in, "format") != kFormat) return std::nullopt;
    CoordinatorFile file{
        .host = string_field(in, "host"),
        .process = process_of(object_field(in, "process")),
        .term = uint_field(in, "term"),
        .endpoint = string_field(in, "endpoint"),
        .public_key = in.contains("public_key") ? string_field(in, "public_key") : "",
        .started_at = string_field(in, "started_at"),
        .beat = uint_field(in, "beat"),
        .children = {}};
    for (const json& child : field(in, "children")) {
      file.children.push_back({string_field(child, "uuid"),
                               uint_field(child, "incarnation"),
                               uint_field(child, "fencing_token"),
                               process_of(object_field(child, "process"))});
    }
    return file;
  } catch (const storage::Error&) {
    return std::nullopt;
  }
}

std::optional<CoordinatorFile> read_coordinator_file(const storage::RunLayout& layout,
                                                     const storage::Disk& disk) {
  return read_coordinator_file(layout.coordinator_file(), disk);
}

void write_coordinator_file(const storage::RunLayout& layout,
                            const CoordinatorFile& file,
                            storage::Disk& disk) {
  write_coordinator_file(layout.coordinator_file(), file, disk);
}

void write_coordinator_file(const std::filesystem::path& path,
                            const CoordinatorFile& file,
                            storage::Disk& disk) {
  json out = {{"format", kFormat},
              {"host", file.host},
              {"process", process_json(file.process)},
              {"term", file.term},
              {"endpoint", file.endpoint},
              {"public_key", file.public_key},
              {"started_at", file.started_at},
              {"beat", file.beat},
              {"children", json::array()}};
  for (const ChildRecord& child : file.children) {
    out["children"].push_back({{"uuid", child.uuid},
                               {"incarnation", child.incarnation},
                               {"fencing_token", child.fencing_token},
                               {"process", process_json(child.process)}});
  }
  disk.write_atomically(path, out.dump(2) + "\n");
}

}  // namespace hedgerow::wire
