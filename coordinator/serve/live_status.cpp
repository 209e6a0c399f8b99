#include "coordinator/serve/live_status.hpp"

#include <algorithm>
#include <map>
#include <span>

#include "storage/base/error.hpp"
#include "storage/base/utc.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

double seconds_since(TimePoint then, TimePoint now) {
  return std::chrono::duration<double>(now - then).count();
}

// By name, no more than are shown.
std::vector<const LiveWorkers::value_type*> listed(const LiveWorkers& workers) {
  std::vector<const LiveWorkers::value_type*> all;
  for (const auto& worker : workers) all.push_back(&worker);
  const std::size_t num_shown = std::min(all.size(), kMaxListed);
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(num_shown);
  std::partial_sort(all.begin(), end, all.end(), [](const auto* a, const auto* b) {
    return a->first < b->first;
  });
  all.erase(end, all.end());
  return all;
}

// All that was given up failed for what its owner has to mend: the same again would end the same.
bool waits_for_its_owner(const State& state) {
  bool is_any = false;
  for (const auto& [id, task] : state.tasks) {
    if (task.state != TaskState::kQuarantined) continue;
    is_any = true;
    if (task.failures.empty() || task.failures.back().kind != storage::ErrorKind::kUsage)
      return false;
  }
  return is_any;
}

}  // namespace

RunStatus live_status(const LiveRun& run) {
  const Dispatcher& dispatcher = run.dispatcher;
  RunStatus status;
  status.run = run.layout.root().string();
  status.state = "running";
  status.is_stopping = run.is_stopping;
  status.has_room = run.has_room;
  status.term = dispatcher.term();
  status.host = run.file.host;
  status.endpoint = run.file.endpoint;
  status.web = run.web;
  status.pid = run.file.process.pid;
  status.updated_at = storage::utc_now();
  status.warnings = run.folded.warnings;
  const auto progress = [&](std::uint64_t token) -> std::optional<LiveProgress> {
    const wire::Progress* latest = dispatcher.leases().progress(token);
    if (latest == nullptr) return std::nullopt;
    const Leases& leases = dispatcher.leases();
    return LiveProgress{*latest, leases.seconds_since_progress(token), leases.speed(token)};
  };
  fill_status(
      status, dispatcher.state(), run.folded.times, progress, storage::wall_seconds(), run.size);
  std::map<std::string, std::string> misfits;
  for (const auto& [id, text] : dispatcher.fit().shown()) misfits[to_string(id)] = text;
  for (TaskStatus& task : status.tasks) {
    if (const auto found = misfits.find(task.id); found != misfits.end())
      task.reason = found->second;
  }
  if (const std::string wants = run.stage ? run.stage->wants() : ""; !wants.empty()) {
    status.warnings.push_back("finetune " + wants);
    for (TaskStatus& task : status.tasks) {
      if (task.stage == Stage::kFinetune) task.reason = wants;
    }
  }
  for (const std::string& warning : dispatcher.fit().warnings()) status.warnings.push_back(warning);
  const TimePoint now = run.now;
  for (const LiveWorkers::value_type* const entry : listed(dispatcher.workers())) {
    const auto& [uuid, live] = *entry;
    WorkerStatus worker{.uuid = uuid,
                        .host = live.host,
                        .device = live.device,
                        .phase = "idle",
                        .task = "",
                        .incarnation = live.incarnation,
                        .pid = live.pid,
                        .seconds_since_heartbeat = seconds_since(live.last_seen, now)};
    for (const std::uint64_t token :
         dispatcher.tokens_of(uuid == dispatcher.finetune_worker() ? kMpiHolder : uuid)) {
      worker.task = to_string(dispatcher.state().grants.at(token));
      const wire::Progress* latest = dispatcher.leases().progress(token);
      worker.phase = latest == nullptr ? "starting" : latest->phase;
      worker.speed = dispatcher.leases().speed(token);
      const bool did_the_like =
          live.last_speed && live.last_speed->first == dispatcher.state().grants.at(token).stage;
      if (!worker.speed && did_the_like) worker.speed = live.last_speed->second;
    }
    status.workers.push_back(std::move(worker));
  }
  status.workers_left_out = static_cast<int>(dispatcher.workers().size() - status.workers.size());
  return status;
}

void write_status(const storage::RunLayout& layout, const RunStatus& status) {
  const std::filesystem::path path = status_file(layout), temporary = path.string() + ".new";
  const std::string text = nlohmann::json(status).dump();
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);  // also a link, which must not be written through
  try {
    storage::File file = storage::File::create_exclusive(temporary);
    file.write_all(std::as_bytes(std::span(text)));
    file.close();
    std::filesystem::rename(temporary, path, ignored);
  } catch (const storage::Error&) {
    std::filesystem::remove(temporary, ignored);
  }
}

RunOutcome outcome_of(RunPhase phase, const State& state, RunStatus status, bool leaves_finetune) {
  RunOutcome outcome;
  outcome.status = std::move(status);
  outcome.status.is_stopping = false;
  switch (phase) {
    case RunPhase::kDone:
      outcome.exit_code = storage::ExitCode::kOk;
      outcome.status.state = "done";
      outcome.summary = "done";
      break;
    case RunPhase::kPartial: {
      outcome.exit_code =
          waits_for_its_owner(state) ? storage::ExitCode::kUsage : storage::ExitCode::kPartial;
      outcome.status.state = "partial";
      outcome.summary = quarantine_text(outcome.status);
      outcome.summary += "; the rest is done. Run again to retry, 'hedgerow explain' says more";
      break;
    }
    case RunPhase::kNew:
    case RunPhase::kRunning:
      outcome.exit_code = storage::ExitCode::kInterrupted;
      outcome.status.state = "stopped";
      outcome.summary = "stopped; the same command goes on";
      if (!leaves_finetune) break;
      outcome.exit_code = storage::ExitCode::kOk;
      outcome.summary = "all but the finetune stage is done";
      break;
  }
  return outcome;
}

}  // namespace hedgerow::coordinator
