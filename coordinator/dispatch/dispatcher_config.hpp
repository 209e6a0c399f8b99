// What the dispatcher is told of its run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/dispatch/leases.hpp"
#include "coordinator/dispatch/scheduler.hpp"
#include "coordinator/plan/plan.hpp"
#include "storage/journal/disk.hpp"

namespace hedgerow::coordinator {

// From mpirun to rank 0's hello, which a busy launcher or a cold file system may hold up. The first
// lease of a finetune stage, and the one after a coordinator's restart, which may come in between.
inline constexpr std::chrono::seconds kMpiStartTerm{300};

struct DispatcherConfig {
  MemoryNeeds needs;
  KeepBoundaries keep;
  LeaseTerms leases;
  std::chrono::milliseconds second_worker_timeout{std::chrono::minutes(10)};
  std::chrono::milliseconds idle{300};  // before a worker without a task asks again, at least
  // uuids of the workers that the run starts itself; none: they come from elsewhere.
  std::vector<std::string> own_workers;
  bool needs_external_workers =
      false;  // none, and no launcher starts any: the user has to start at least one
  std::uint64_t token_floor = 0;     // tokens seen in file names
  std::uint64_t room_for_retry = 0;  // free disk below which an exhausted task stops the run
  storage::Disk* disk = &storage::os_disk();  // where commits go; the journal has its own
  // Ours; a worker of another version is refused, of another build noted.
  std::string version, build;
  // Workers of the cluster file that the run was planned for; none: there was none.
  std::vector<WorkerKind> planned{};
  // Called with what is worth a line and is no event, as of a dropped message. Empty: not called.
  std::function<void(const std::string& line)> log{};
};

}  // namespace hedgerow::coordinator
