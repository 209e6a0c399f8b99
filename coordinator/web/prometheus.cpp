#include "coordinator/web/prometheus.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>

#include "storage/base/build_info.hpp"
#include "storage/base/utc.hpp"

namespace hedgerow::coordinator {
namespace {

using Labels = prometheus::Labels;

// Made for one answer and thrown away: the run's files are the state.
class Metrics {
 public:
  void gauge(const std::string& name, const std::string& help, const Labels& labels, double value) {
    prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels).Set(value);
  }
  void counter(const char* name, const char* help, const Labels& labels, double value) {
    prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels).Increment(
        value);
  }
  [[nodiscard]] std::string text() const {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
};

std::string stage_of(const std::string& task) { return task.substr(0, task.find('/')); }

// The steps of a task that is done stand in its result, which is the worker's own.
double steps_behind(const TaskStatus& task) {
  if (task.state == "done" && task.result.is_object()) {
    const auto found = task.result.find("steps");
    if (found != task.result.end() && found->is_number()) return found->get<double>();
  }
  return static_cast<double>(task.steps().done);
}

void add_tasks(const RunStatus& status, Metrics& metrics) {
  for (const StageStatus& stage : status.stages) {
    const int waiting = stage.total - stage.done - stage.running - stage.quarantined;
    for (const auto& [state, count] : {std::pair("waiting", waiting),
                                       std::pair("running", stage.running),
                                       std::pair("done", stage.done),
                                       std::pair("quarantined", stage.quarantined)})
      metrics.gauge("hedgerow_tasks",
                    "Tasks of a stage by their state.",
                    {{"stage", std::string(to_string(stage.stage))}, {"state", state}},
                    count);
    metrics.gauge("hedgerow_stage_progress_ratio",
                  "Share of a stage's work that is done, 0 to 1.",
                  {{"stage", std::string(to_string(stage.stage))}},
                  stage.fraction);
    metrics.counter("hedgerow_stage_seconds_total",
                    "Seconds in which a task of the stage was under way.",
                    {{"stage", std::string(to_string(stage.stage))}},
                    stage.seconds);
    if (stage.planned && stage.planned->seconds > 0.0)
      metrics.gauge("hedgerow_planned_seconds",
                    "Seconds that the stage was planned to take when the run began.",
                    {{"stage", std::string(to_string(stage.stage))}},
                    stage.planned->seconds);
    if (stage.eta_seconds)
      metrics.gauge("hedgerow_eta_seconds",
                    "Seconds until the stage is done, as far as is known.",
                    {{"stage", std::string(to_string(stage.stage))}},
                    *stage.eta_seconds);
  }
  for (const TaskStatus& task : status.tasks) {
    if (task.stage != Stage::kTransfer) continue;
    const Labels block{{"block", std::to_string(task.block)}};
    metrics.gauge("hedgerow_block_step",
                  "Steps of attention transfer that a block has behind it.",
                  block,
                  steps_behind(task));
    metrics.gauge("hedgerow_block_steps_planned",
                  "Steps of attention transfer that a block is to do.",
                  block,
                  static_cast<double>(task.steps().all));
    if (task.state == "running")
      metrics.gauge("hedgerow_block_seconds_since_progress",
                    "Seconds since a running block has got further.",
                    block,
                    task.seconds_since_progress);
  }
}

// The last value of every column that the table has a name for.
void add_columns(const storage::History& history,
                 std::span<const storage::HistoryColumn> columns,
                 bool is_running,
                 Metrics& metrics) {
  for (const auto& [name, series] : history.series) {
    if (series.rows.empty()) continue;
    const storage::SeriesKey key = storage::series_key(name);
    const std::vector<float>& last = series.rows.back().values;
    for (std::size_t i = 0; i < std::min(last.size(), series.columns.size()); ++i) {
      const auto* column = storage::find_column(key.kind, series.columns[i], columns);
      if (column == nullptr || column->prometheus.empty()) continue;
      if (column->is_of_running_run && !is_running) continue;
      Labels labels(key.labels.begin(), key.labels.end());
      if (!column->index.empty())
        labels.emplace(column->index, series.columns[i].substr(column->name.size()));
      metrics.gauge(std::string(column->prometheus), std::string(column->help), labels, last[i]);
    }
  }
  const auto finetune = history.series.find("finetune");
  if (finetune == history.series.end() || finetune->second.rows.empty()) return;
  metrics.gauge("hedgerow_finetune_step",
                "Steps of the LoRA stage that are done.",
                {},
                static_cast<double>(finetune->second.rows.back().step));
}

void add_attempts(const storage::History& history, Metrics& metrics) {
  std::map<std::pair<std::string, std::string>, int> outcomes;
  std::map<std::string, double> tokens, waited;
  for (const auto& [token, attempt] : history.attempts) {
    const std::string stage = stage_of(attempt.task);
    tokens[stage] += static_cast<double>(attempt.tokens);
    waited[stage] += attempt.seconds_waited_on_data;
    if (attempt.ended != 0.0) ++outcomes[{stage, attempt.outcome}];
  }
  for (const auto& [key, count] : outcomes)
    metrics.counter("hedgerow_task_attempts_total",
                    "Attempts at tasks that have ended.",
                    {{"stage", key.first}, {"outcome", key.second}},
                    count);
  for (const auto& [stage, count] : tokens)
    metrics.counter(
        "hedgerow_tokens_total", "Tokens that were worked on.", {{"stage", stage}}, count);
  for (const auto& [stage, sum] : waited)
    metrics.counter("hedgerow_data_wait_seconds_total",
                    "Seconds in which workers waited on data.",
                    {{"stage", stage}},
                    sum);
  int revoked = 0, lost = 0;
  for (const storage::HistoryEvent& event : history.events) {
    revoked += event.type == "revoked";
    lost += event.type == "lost";
  }
  metrics.counter(
      "hedgerow_lease_revocations_total", "Leases that ran out or whose holder died.", {}, revoked);
  metrics.counter(
      "hedgerow_files_lost_total", "Committed files that were found missing or damaged.", {}, lost);
}

}  // namespace

std::string prometheus_text(const RunStatus& status,
                            const storage::History& history,
                            std::span<const storage::HistoryColumn> columns) {
  Metrics metrics;
  metrics.gauge("hedgerow_build_info", "Always 1.", {{"version", storage::build()}}, 1);
  metrics.gauge(
      "hedgerow_run_info", "Always 1.", {{"run", status.run}, {"state", status.state}}, 1);
  metrics.gauge("hedgerow_coordinator_term",
                "Terms of coordinators that the run has had.",
                {},
                static_cast<double>(status.term));
  metrics.gauge("hedgerow_run_progress_ratio",
                "Share of the run's work that is done, 0 to 1.",
                {},
                status.fraction.value_or(0.0));
  if (status.eta_seconds)
    metrics.gauge("hedgerow_run_eta_seconds",
                  "Seconds until the run is done, as far as is known.",
                  {},
                  *status.eta_seconds);
  if (status.so_far)
    metrics.counter("hedgerow_gpu_seconds_total",
                    "Seconds that attempts at tasks held GPUs.",
                    {},
                    3600.0 * status.so_far->gpu_hours);
  add_tasks(status, metrics);
  add_columns(history, columns, status.state == "running", metrics);
  add_attempts(history, metrics);
  metrics.gauge("hedgerow_workers",
                "Workers that are connected.",
                {},
                static_cast<double>(status.workers.size()) + status.workers_left_out);
  for (const WorkerStatus& worker : status.workers)
    metrics.gauge("hedgerow_worker_last_heartbeat_timestamp_seconds",
                  "When the worker was heard of last, UTC.",
                  {{"worker", worker.uuid}},
                  storage::seconds_of_utc(status.updated_at) - worker.seconds_since_heartbeat);
  return metrics.text();
}

}  // namespace hedgerow::coordinator
