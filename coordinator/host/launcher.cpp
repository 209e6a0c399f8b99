#include "coordinator/host/launcher.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <fstream>

#include "coordinator/machine/allocation.hpp"
#include "coordinator/state/events.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr int kMaxSilentDeaths = 5;
constexpr std::chrono::seconds kLongestBackoff{32};
constexpr const char* kLauncherUuid = "launcher";

std::chrono::seconds backoff_after(int deaths) {
  return std::min(kLongestBackoff, std::chrono::seconds(1 << std::min(deaths - 1, 5)));
}

}  // namespace

std::string tail_of(const std::filesystem::path& log, int lines) {
  std::ifstream file(log);
  std::deque<std::string> last;
  for (std::string line; std::getline(file, line);) {
    last.push_back(line);
    if (last.size() > static_cast<std::size_t>(lines)) last.pop_front();
  }
  std::string text;
  for (const std::string& line : last) text += "\n    " + line;
  return text;
}

std::string local_worker_uuid(int slot, const std::string& host) {
  return host + "-" + std::to_string(slot);
}

int workers_on_device(int slot, int local_workers, int num_gpus) {
  if (num_gpus == 0 || slot >= local_workers) return 1;
  return (local_workers - 1 - slot % num_gpus) / num_gpus + 1;
}

LocalWorkers::LocalWorkers(LauncherConfig config, const Clock& clock)
    : config_(std::move(config)), clock_(clock) {
  for (int slot = 0; slot < config_.local_workers; ++slot) {
    slots_.push_back({.uuid = local_worker_uuid(slot, config_.host),
                      .process = std::nullopt,
                      .start_after = clock_.now()});
  }
  if (config_.worker_launcher.empty()) return;
  slots_.push_back({.uuid = kLauncherUuid,
                    .process = std::nullopt,
                    .start_after = clock_.now(),
                    .is_launcher = true});
}

std::filesystem::path LocalWorkers::log_of(const Slot& slot) const {
  return config_.logs / ("worker-" + slot.uuid + ".log");
}

void LocalWorkers::adopt(const std::vector<wire::ChildRecord>& children) {
  for (const wire::ChildRecord& child : children) {
    if (child.uuid == kMpiHolder) continue;
    note_incarnation(child.uuid, child.incarnation);
    if (!config_.processes->is_alive(child.process)) continue;
    auto slot = std::find_if(
        slots_.begin(), slots_.end(), [&child](const Slot& s) { return s.uuid == child.uuid; });
    // More lived than are wanted now: they stay until they are drained.
    if (slot == slots_.end())
      slot = slots_.insert(slots_.end(),
                           Slot{.uuid = child.uuid,
                                .process = std::nullopt,
                                .start_after = {},
                                .is_launcher = child.uuid == kLauncherUuid});
    slot->incarnation = child.incarnation;
    slot->process = ChildProcess::adopt(child.process, *config_.processes);
  }
}

void LocalWorkers::note_incarnation(const std::string& uuid, std::uint64_t incarnation) {
  for (Slot& slot : slots_) {
    if (slot.uuid == uuid) slot.incarnation = std::max(slot.incarnation, incarnation);
  }
}

void LocalWorkers::note_hello(const std::string& uuid) {
  bool is_local = false;
  for (Slot& slot : slots_) {
    if (slot.uuid != uuid) continue;
    slot.silent_deaths = 0;
    is_local = true;
  }
  if (is_local) return;
  for (Slot& slot : slots_) {
    if (slot.is_launcher) slot.silent_deaths = 0;
  }
}

// What ended although workers are wanted starts again, later each time.
void LocalWorkers::note_end(Slot& slot, const ProcessExit& exit) {
  ++slot.silent_deaths;
  if (slot.silent_deaths >= kMaxSilentDeaths) {
    throw storage::Error(
        storage::ErrorKind::kUnavailable,
        (slot.is_launcher ? config_.worker_launcher.string() : "worker " + slot.uuid) + " " +
            exit.text() + ", five times without " + (slot.is_launcher ? "a worker " : "") +
            "reaching the coordinator; " + log_of(slot).string() +
            " ends:" + tail_of(log_of(slot)));
  }
  // The batch system told these workers to stop: it takes their node away, and soon ours.
  const bool is_taken =
      slot.is_launcher && exit.code == static_cast<int>(storage::ExitCode::kInterrupted);
  slot.start_after =
      clock_.now() + (is_taken ? kLongestBackoff : backoff_after(slot.silent_deaths));
}

std::vector<EndedWorker> LocalWorkers::tend(bool wanted, const std::string& endpoint) {
  std::vector<EndedWorker> ended;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    Slot& slot = slots_[index];
    if (slot.process) {
      const std::optional<ProcessExit> exit = slot.process->poll();
      if (!exit) continue;
      const bool in_order =
          exit->known && exit->signal == 0 &&
          (exit->code == 0 || exit->code == static_cast<int>(storage::ExitCode::kInterrupted));
      if (!slot.is_launcher) ended.push_back({slot.uuid, slot.incarnation, exit->text(), in_order});
      slot.process.reset();
      if (!wanted) continue;
      note_end(slot, *exit);
    }
    const bool own = index < static_cast<std::size_t>(config_.local_workers) || slot.is_launcher;
    if (wanted && own && clock_.now() >= slot.start_after) start(slot, endpoint);
  }
  return ended;
}

void LocalWorkers::start(Slot& slot, const std::string& endpoint) {
  ++slot.incarnation;
  if (slot.is_launcher) {
    slot.process =
        ChildProcess::start({config_.worker_launcher.string()}, log_of(slot), *config_.processes);
    return;
  }
  std::vector<std::string> argv = {config_.worker_binary.string(),
                                   "serve",
                                   "--run",
                                   config_.run_directory.string(),
                                   "--connect",
                                   endpoint,
                                   "--worker",
                                   slot.uuid,
                                   "--incarnation",
                                   std::to_string(slot.incarnation),
                                   "--threads",
                                   std::to_string(config_.threads),
                                   "--local-rank",
                                   std::to_string(&slot - slots_.data())};
  const int sharing = workers_on_device(
      static_cast<int>(&slot - slots_.data()), config_.local_workers, config_.num_gpus);
  if (sharing > 1) argv.insert(argv.end(), {"--workers-on-device", std::to_string(sharing)});
  slot.process = ChildProcess::start(argv, log_of(slot), *config_.processes);
}

// srun answers SIGTERM by killing its tasks; SIGUSR1 it hands on to them, and they take it for the
// same request.
void LocalWorkers::signal_all(int number) {
  for (Slot& slot : slots_) {
    if (slot.process)
      slot.process->signal(slot.is_launcher && number == SIGTERM ? SIGUSR1 : number);
  }
}

void LocalWorkers::kill(const std::string& uuid) {
  for (Slot& slot : slots_) {
    if (slot.uuid == uuid && slot.process) slot.process->signal(SIGKILL);
  }
}

bool LocalWorkers::all_gone() const {
  return std::none_of(
      slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.process.has_value(); });
}

std::vector<wire::ChildRecord> LocalWorkers::children() const {
  std::vector<wire::ChildRecord> records;
  for (const Slot& slot : slots_) {
    if (slot.process) records.push_back({slot.uuid, slot.incarnation, 0, slot.process->id()});
  }
  return records;
}

std::vector<std::string> mpirun_words(bool in_allocation, bool copies) {
  std::vector<std::string> words;
  for (const std::string& name : machine::variables_of_other_jobs(in_allocation)) {
    if (words.empty()) words.emplace_back("/usr/bin/env");
    words.insert(words.end(), {"-u", name});
  }
  words.insert(words.end(), {"mpirun", "--oversubscribe", "--bind-to", "none"});
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  if (!copies) words.insert(words.end(), {"--mca", "btl_vader_single_copy_mechanism", "none"});
  return words;
}

}  // namespace hedgerow::coordinator
