// What the coordinator shows: status.json, coordinator.json, and how the run ended.
#include <algorithm>
#include <map>
#include <span>

#include "coordinator/serve/coordinator.hpp"
#include "coordinator/status/status_build.hpp"
#include "storage/base/error.hpp"
#include "storage/base/file.hpp"
#include "storage/base/utc.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr std::chrono::seconds kPublishEvery{1};
// Of the coordinator's time, what is shown takes one part in so many; but it is never so old that
// other hosts take the coordinator for dead.
constexpr int kPublishingShare = 100;
constexpr std::chrono::seconds kPublishAtLeastEvery{10};

double seconds_since(TimePoint then, TimePoint now) {
  return std::chrono::duration<double>(now - then).count();
}

// Readers see the old or the new file, never half of one, also on a full disk. Not synced: it is
// worth nothing after a crash.
void replace_file(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path temporary = path.string() + ".new";
  std::error_code ignored;                      // the next second tries again
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

// Tasks that are given up for the same reason are named together.
std::string quarantined(const RunStatus& status) {
  std::map<std::string, std::vector<std::string>> tasks;  // by reason
  for (const TaskStatus& task : status.tasks) {
    if (task.state == "quarantined") tasks[task.reason].push_back(task.id);
  }
  std::string text;
  for (const auto& [reason, ids] : tasks) {
    text += (text.empty() ? "" : "; ") + ids.front();
    if (ids.size() > 1) text += " and " + std::to_string(ids.size() - 1) + " more are";
    text += (ids.size() > 1 ? " quarantined: " : " is quarantined: ") + reason;
  }
  return text;
}

}  // namespace

RunStatus Coordinator::status() {
  RunStatus status;
  status.run = config_.layout.root().string();
  status.state = "running";
  status.is_stopping = is_asked_to_stop_;
  status.has_room = mode_ == Mode::kServing && !stopping_;
  status.term = dispatcher_.term();
  status.host = file_.host;
  status.endpoint = file_.endpoint;
  status.pid = file_.process.pid;
  status.updated_at = storage::utc_now();
  status.warnings = folded_.warnings;
  const auto progress = [this](std::uint64_t token) -> std::optional<LiveProgress> {
    const wire::Progress* latest = dispatcher_.leases().progress(token);
    if (latest == nullptr) return std::nullopt;
    const Leases& leases = dispatcher_.leases();
    return LiveProgress{*latest, leases.seconds_since_progress(token), leases.speed(token)};
  };
  fill_status(
      status, dispatcher_.state(), folded_.times, progress, storage::wall_seconds(), config_.size);
  measured_.fill(status);
  std::map<std::string, std::string> misfits;
  for (const auto& [id, text] : dispatcher_.fit().shown()) misfits[to_string(id)] = text;
  for (TaskStatus& task : status.tasks) {
    if (const auto found = misfits.find(task.id); found != misfits.end())
      task.reason = found->second;
  }
  if (const std::string wants = stage_wants(); !wants.empty()) {
    status.warnings.push_back("finetune " + wants);
    for (TaskStatus& task : status.tasks) {
      if (task.stage == "finetune") task.reason = wants;
    }
  }
  for (const std::string& warning : dispatcher_.fit().warnings())
    status.warnings.push_back(warning);
  const TimePoint now = clock_.now();
  for (const LiveWorkers::value_type* const entry : listed(dispatcher_.workers())) {
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
         dispatcher_.tokens_of(uuid == dispatcher_.finetune_worker() ? kMpiHolder : uuid)) {
      worker.task = to_string(dispatcher_.state().grants.at(token));
      const wire::Progress* latest = dispatcher_.leases().progress(token);
      worker.phase = latest == nullptr ? "starting" : latest->phase;
      worker.speed = dispatcher_.leases().speed(token);
      const bool did_the_like =
          live.last_speed && live.last_speed->first == dispatcher_.state().grants.at(token).stage;
      if (!worker.speed && did_the_like) worker.speed = live.last_speed->second;
    }
    status.workers.push_back(std::move(worker));
  }
  status.workers_left_out = static_cast<int>(dispatcher_.workers().size() - status.workers.size());
  return status;
}

void Coordinator::publish(bool always) {
  if (observer_ == nullptr) return;
  const TimePoint now = clock_.now();
  if (!always && (!dirty_ || now < next_publish_)) return;
  dirty_ = false;
  const RunStatus current = status();
  replace_file(status_file(config_.layout), nlohmann::json(current).dump());
  next_publish_ =
      now + std::clamp<TimePoint::duration>(
                kPublishingShare * (clock_.now() - now), kPublishEvery, kPublishAtLeastEvery);
  observer_->on_status(current);
}

void Coordinator::write_coordinator_file() {
  file_.children = workers_.children();
  if (const auto child = mpi_.child()) file_.children.push_back(*child);
  wire::write_coordinator_file(config_.layout, file_, environment_.disk);
}

void Coordinator::check_still_ours() {
  if (clock_.now() < next_beat_) return;
  next_beat_ = clock_.now() + wire::kHeartbeatInterval;
  const std::optional<wire::CoordinatorFile> current =
      wire::read_coordinator_file(config_.layout, environment_.disk);
  if (current && current->term > file_.term) {
    throw storage::Overtaken("run " + config_.layout.root().string() +
                             ": another coordinator took this run over, and this one, term " +
                             std::to_string(file_.term) + ", leaves it alone");
  }
  ++file_.beat;
  write_coordinator_file();
}

RunOutcome Coordinator::outcome(RunPhase phase) {
  RunOutcome outcome;
  outcome.status = status();
  outcome.status.is_stopping = false;
  switch (phase) {
    case RunPhase::kDone:
      outcome.exit_code = storage::ExitCode::kOk;
      outcome.status.state = "done";
      outcome.summary = "done";
      break;
    case RunPhase::kPartial: {
      outcome.exit_code = storage::ExitCode::kPartial;
      outcome.status.state = "partial";
      outcome.summary = quarantined(outcome.status);
      outcome.summary += "; the rest is done. Run again to retry, 'hedgerow explain' says more";
      break;
    }
    case RunPhase::kNew:
    case RunPhase::kRunning:
      outcome.exit_code = storage::ExitCode::kInterrupted;
      outcome.status.state = "stopped";
      outcome.summary = "stopped; the same command goes on";
      if (!leaves_finetune_) break;
      outcome.exit_code = storage::ExitCode::kOk;
      outcome.summary = "all but the finetune stage is done";
      break;
  }
  replace_file(status_file(config_.layout), nlohmann::json(outcome.status).dump());
  if (observer_ != nullptr) observer_->on_status(outcome.status);
  return outcome;
}

}  // namespace hedgerow::coordinator
