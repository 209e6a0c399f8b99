#include "coordinator/wire/coordinator_file.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "storage/base/error.hpp"
#include "storage/json/fields.hpp"

namespace hedgerow::wire {

template <typename Visitor, storage::Is<ProcessId> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("pid", m.pid);
  visitor.field("start_ticks", m.start_ticks);
}
template <typename Visitor, storage::Is<ChildRecord> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("uuid", m.uuid);
  visitor.field("incarnation", m.incarnation);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("process", m.process);
}
template <typename Visitor, storage::Is<CoordinatorFile> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("host", m.host);
  visitor.field("process", m.process);
  visitor.field("term", m.term);
  visitor.field("endpoint", m.endpoint);
  visitor.optional_field("public_key", m.public_key);
  visitor.field("started_at", m.started_at);
  visitor.field("beat", m.heartbeat_count);
  visitor.field("children", m.children);
}

namespace {

using nlohmann::json;

constexpr const char* kFormat = "coordinator/1";
constexpr std::uint64_t kMaxBytes = 1U << 20;
constexpr int kLargestPort = 65535;

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
    const json in = storage::parse_document(disk.read(path, kMaxBytes));
    if (storage::string_field(in, "format") != kFormat) return std::nullopt;
    return storage::fields_from_json<CoordinatorFile>(in);
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
  json out = storage::fields_to_json(file);
  out["format"] = kFormat;
  disk.write_atomically(path, out.dump(2) + "\n");
}

}  // namespace hedgerow::wire
