#include "coordinator/cli/terminal/explanation.hpp"

#include <algorithm>
#include <array>

#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/view.hpp"

namespace hedgerow::coordinator::cli {
namespace {

std::string doing_text(const RunStatus& status, const TaskStatus& task) {
  if (task.state == "done") return "is done";
  if (task.state == "dropped") return "is done, and its files are deleted again";
  if (task.state == "quarantined") return "is quarantined: " + task.reason;
  if (task.state == "waiting") return "waits: " + task.reason;
  if (task.state == "ready") {
    return status.state == "running" ? "is ready and waits for a free worker"
                                     : "is ready; 'hedgerow run' goes on with it";
  }
  // A journal without a coordinator still names who held it last.
  if (status.state != "running") return "was being worked on by " + task.worker + " at the end";
  std::string text = "is worked on by " + task.worker;
  if (task.progress && !task.progress->phase.empty()) text += " (" + task.progress->phase + ")";
  return text;
}

std::string step_clause(const TaskStatus& task) {
  const TaskStatus::Steps steps = task.steps();
  if (task.state == "done" || steps.done == 0 || steps.all == 0) return "";
  const std::string at = std::to_string(steps.done) + " of " + std::to_string(steps.all);
  return task.state == "running" ? "; at step " + at : "; it goes on from step " + at;
}

std::string mse_text(const TaskStatus& task, const storage::History* history) {
  const BlockMse mse = mse_of(task, history);
  if (mse.worst_layer() < 0) return "";
  return std::string(task.state == "done" ? "; " : "; last measured ") + "MSE " +
         number_text(mse.mean()) + ", worst layer " + std::to_string(mse.worst_layer()) + " with " +
         number_text(mse.worst());
}

std::string memory_clause(const TaskStatus& task) {
  const wire::PeakMemory peak = task.peak_memory();
  std::string text;
  if (peak.device_bytes > 0) {
    text = bytes_text(peak.device_bytes) + " of the GPU's memory (" +
           bytes_text(peak.device_reserved_bytes) + " reserved)";
  }
  if (peak.host_bytes > 0)
    text += (text.empty() ? "" : " and ") + bytes_text(peak.host_bytes) + " of the host's";
  return text.empty() ? "" : "; took at most " + text;
}

std::string adapter_clause(const TaskStatus& task) {
  const std::string text = task.stage == Stage::kFinetune ? adapter_text(task) : "";
  return text.empty() ? "" : "; " + text;
}

std::string sentence(const RunStatus& status,
                     const TaskStatus& task,
                     const std::string& name,
                     const storage::History* history = nullptr) {
  std::string text = name + " " + doing_text(status, task) + step_clause(task) +
                     mse_text(task, history) + adapter_clause(task) + memory_clause(task);
  if (task.tries() > 1) text += "; try " + std::to_string(task.tries());
  if (task.lost_steps > 0) text += "; lost to failures: " + counted(task.lost_steps, "step");
  if (task.state == "ready" && !task.reason.empty()) text += "; before: " + task.reason;
  return one_line(text);
}

std::string block_sentence(const RunStatus& status,
                           const TaskStatus& task,
                           const storage::History* history) {
  const int last = task.first_layer + task.num_layers - 1;
  return sentence(status,
                  task,
                  "block " + std::to_string(task.block) +
                      (task.num_layers == 1 ? " (layer " + std::to_string(last) + ")"
                                            : " (layers " + std::to_string(task.first_layer) + "-" +
                                                  std::to_string(last) + ")"),
                  history);
}

// The pieces of a capture are many and alike: they are counted, and those in need are named.
void add_capture(const RunStatus& status,
                 const std::string& name,
                 int block,
                 std::vector<std::string>& lines) {
  int all = 0, done = 0;
  std::vector<std::string> named;
  for (const TaskStatus& task : status.tasks) {
    if (task.stage != Stage::kCapture || (block >= 0 && task.block != block)) continue;
    ++all;
    done += task.state == "done" || task.state == "dropped";
    if (task.state == "quarantined" || task.wasted > 0)
      named.push_back(sentence(status, task, task.id));
  }
  if (all == 0) return;
  lines.push_back(name + ": " + std::to_string(done) + " of " + std::to_string(all) +
                  " pieces are done");
  lines.insert(lines.end(), named.begin(), named.end());
}

}  // namespace

std::vector<std::string> explain_block(const RunStatus& status,
                                       int block,
                                       const storage::History* history) {
  std::vector<std::string> lines;
  for (const TaskStatus& task : status.tasks) {
    if (task.stage == Stage::kTransfer && task.block == block)
      lines.push_back(block_sentence(status, task, history));
  }
  if (lines.empty())
    lines.push_back("block " + std::to_string(block) +
                    " keeps softmax attention: nothing to train");
  add_capture(status, "capture of what it reads", block - 1, lines);
  return lines;
}

std::vector<std::string> explain_run(const RunStatus& status, const storage::History* history) {
  std::vector<std::string> lines;
  add_capture(status, "capture", -1, lines);
  for (const wire::TaskKindRow& kind : wire::task_kinds()) {
    if (kind.kind == Stage::kCapture) continue;
    for (const TaskStatus& task : status.tasks) {
      if (task.stage != kind.kind) continue;
      lines.push_back(task.stage == Stage::kTransfer ? block_sentence(status, task, history)
                                                     : sentence(status, task, task.id));
    }
  }
  return lines;
}

std::vector<std::string> plan_lines(const RunStatus& status, int width) {
  Table table;
  table.column("stage", 9).column("time", 8, true).column("planned", 8, true);
  table.column("memory", 7, true).column("planned", 7, true);
  table.column("disk", 6, true).column("planned", 6, true);
  const bool on_gpus = status.so_far && status.so_far->gpu_hours > 0.0;
  if (on_gpus) table.column("GPU-hours", 5, true).column("planned", 5, true);
  const auto time = [](double seconds) { return seconds > 0.0 ? duration_text(seconds) : "-"; };
  const auto size = [](std::uint64_t bytes) { return bytes > 0 ? bytes_text(bytes) : "-"; };
  for (const StageStatus& stage : status.stages) {
    if (!stage.planned || stage.total == 0) continue;
    std::vector<std::string> cells = {std::string(to_string(stage.stage)),
                                      time(stage.seconds),
                                      time(stage.planned->seconds),
                                      size(stage.memory_bytes),
                                      size(stage.planned->memory_bytes),
                                      size(stage.disk_bytes),
                                      size(stage.planned->disk_bytes)};
    if (on_gpus) {
      cells.push_back(number_text(stage.gpu_hours, 3));
      cells.push_back(number_text(stage.planned->gpu_hours, 3));
    }
    table.row(std::move(cells));
  }
  return table.empty() ? std::vector<std::string>{} : table.render(width);
}

bool is_trouble(const ExplainedEvent& event) {
  constexpr std::array<const char*, 7> kQuiet = {"term_started",
                                                 "run_started",
                                                 "granted",
                                                 "shard_committed",
                                                 "checkpointed",
                                                 "done",
                                                 "dropped"};
  return std::none_of(
      kQuiet.begin(), kQuiet.end(), [&event](const char* type) { return event.type == type; });
}

}  // namespace hedgerow::coordinator::cli
