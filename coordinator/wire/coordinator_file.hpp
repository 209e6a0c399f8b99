// coordinator.json: who coordinates a run now. The coordinator replaces it atomically when it
// starts and when its children change; a worker that lost its coordinator reads it to find the next
// one, a second coordinator reads it to be refused, and a restarted one to adopt the children that
// live on. It holds no secret.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/files/run_layout.hpp"
#include "storage/journal/disk.hpp"

namespace hedgerow::wire {

// A process named so that a recycled pid is not taken for it. Host-local.
struct ProcessId {
  int pid = 0;
  std::uint64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat
  bool operator==(const ProcessId&) const = default;
};
[[nodiscard]] ProcessId this_process();
[[nodiscard]] std::optional<ProcessId> process_with(
    int pid);  // nullopt: no such process, or a zombie
[[nodiscard]] bool is_alive(const ProcessId& process);

// A worker process or the MPI stage, started by a coordinator on its own host.
struct ChildRecord {
  std::string uuid;  // the worker's; "mpi" for the finetune stage
  std::uint64_t incarnation = 0;
  std::uint64_t fencing_token = 0;  // the finetune stage's
  ProcessId process;
};

inline constexpr std::chrono::seconds kHeartbeatInterval{5};

struct CoordinatorFile {
  std::string host;
  ProcessId process;
  std::uint64_t term = 0;
  std::string endpoint;  // "tcp://127.0.0.1:40123"
  // Key of the coordinator, Z85: connections at the endpoint are encrypted. Empty: they are not.
  std::string public_key{};
  std::string started_at;  // UTC, for people
  // Grows every kHeartbeatInterval: how another host tells a living coordinator from a dead one.
  std::uint64_t heartbeat_count = 0;
  std::vector<ChildRecord> children;
};

// Processes of this host that its coordinator started and left behind: it is dead, they are not.
[[nodiscard]] std::vector<ChildRecord> orphans_of(const CoordinatorFile& file);

// The port of an endpoint: 40123 of "tcp://127.0.0.1:40123"; 0 if it names none.
[[nodiscard]] int port_of(const std::string& endpoint);

[[nodiscard]] std::string this_host();
// nullopt: there is none, or it is unreadable (then the journal's exclusive segment still keeps two
// coordinators apart).
[[nodiscard]] std::optional<CoordinatorFile> read_coordinator_file(
    const storage::RunLayout& layout, const storage::Disk& disk = storage::os_disk());
void write_coordinator_file(const storage::RunLayout& layout,
                            const CoordinatorFile& file,
                            storage::Disk& disk = storage::os_disk());
// The same of another file, as preparing.json.
[[nodiscard]] std::optional<CoordinatorFile> read_coordinator_file(
    const std::filesystem::path& path, const storage::Disk& disk = storage::os_disk());
void write_coordinator_file(const std::filesystem::path& path,
                            const CoordinatorFile& file,
                            storage::Disk& disk = storage::os_disk());

}  // namespace hedgerow::wire
