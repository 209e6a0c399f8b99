#include "coordinator/cli/view.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "coordinator/cli/format.hpp"

namespace hedgerow::coordinator::cli {
namespace {

constexpr int kNarrowestNote = 12;      // columns: shorter ones tell nothing
constexpr int kRoomForMemory = 96;      // columns: in narrower views it would push the notes out
constexpr double kSilentWorker = 90.0;  // seconds without progress before the view says so

std::string percent(double fraction) {
  return std::to_string(static_cast<int>(std::floor(std::clamp(fraction, 0.0, 1.0) * 100.0))) + "%";
}

std::string range_text(int first, int count) {
  if (count <= 1) return std::to_string(first);
  return std::to_string(first) + "-" + std::to_string(first + count - 1);
}

// "20/60" of a task that runs, or that was left with a checkpoint.
std::string steps_text(const TaskStatus& task) {
  const TaskStatus::Steps steps = task.steps();
  const bool has_begun = task.progress || steps.done > 0;
  if (task.state == "done" || !has_begun || steps.all == 0) return "";
  return std::to_string(steps.done) + "/" + std::to_string(steps.all);
}

// Of the GPU, else of the process.
std::string memory_text(const TaskStatus& task) {
  const wire::PeakMemory peak = task.peak_memory();
  const std::uint64_t bytes = peak.device_bytes > 0 ? peak.device_bytes : peak.host_bytes;
  return bytes == 0 ? "" : bytes_text(bytes);
}

// LoRA is one task, whose steps are all there is to see of it.
struct FinetuneText {
  std::string step, loss;  // "step 18/40", "loss 2.31"; empty when unknown
};
FinetuneText finetune_text(const RunStatus& status) {
  const TaskStatus* task = status.task("finetune");
  const std::string steps = task == nullptr ? "" : steps_text(*task);
  if (steps.empty()) return {};
  const bool has_loss = task->progress && task->progress->loss > 0.0;
  return {"step " + steps, has_loss ? "loss " + number_text(task->progress->loss) : ""};
}

// Who works on it, or why nobody does.
std::string note_of(const TaskStatus& task) {
  if (task.state != "running") return task.reason;
  std::string note = task.worker;
  if (task.progress && !task.progress->phase.empty()) note += ", " + task.progress->phase;
  if (task.seconds_since_progress > kSilentWorker) {
    note += ", no progress for " + duration_text(task.seconds_since_progress);
  }
  return note;
}

std::vector<const TaskStatus*> transfers(const RunStatus& status) {
  std::vector<const TaskStatus*> tasks;
  for (const TaskStatus& task : status.tasks) {
    if (task.stage == "transfer") tasks.push_back(&task);
  }
  return tasks;
}

void append(std::vector<std::string>& lines, const std::vector<std::string>& more) {
  if (more.empty()) return;
  lines.emplace_back();
  lines.insert(lines.end(), more.begin(), more.end());
}

// A part of the status line; where the width does not suffice, the least important goes first.
struct Piece {
  std::string separator, text;
  int importance;
};

std::string join(std::vector<Piece> pieces, int width) {
  const auto joined = [&pieces] {
    std::string line;
    for (const Piece& piece : pieces) line += (line.empty() ? "" : piece.separator) + piece.text;
    return line;
  };
  while (pieces.size() > 1 && joined().size() > static_cast<std::size_t>(std::max(1, width))) {
    pieces.erase(std::min_element(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return a.importance < b.importance;
    }));
  }
  return joined();
}

// "stopping: waiting for a checkpoint of finetune".
std::string stopping_text(const RunStatus& status) {
  std::string stages;
  for (const StageStatus& stage : status.stages) {
    if (stage.running > 0) stages += (stages.empty() ? "" : ", ") + stage.stage;
  }
  return stages.empty() ? "stopping" : "stopping: waiting for a checkpoint of " + stages;
}

void add_blocks(const RunStatus& status, std::vector<Piece>& pieces) {
  int done = 0, running = 0, retried = 0, quarantined = 0, measured = 0, begun = 0;
  BlockMse worst;
  const std::vector<const TaskStatus*> blocks = transfers(status);
  for (const TaskStatus* task : blocks) {
    done += task->state == "done";
    running += task->state == "running";
    quarantined += task->state == "quarantined";
    retried += task->tries() > 1;
    const BlockMse mse = mse_of(*task);
    measured += mse.worst_layer() >= 0;
    begun += mse.worst_layer() >= 0 || task->checkpoint_step > 0;
    if (mse.worst() > (worst.layers.empty() ? 0.0 : worst.worst())) worst = mse;
  }
  const auto count = [](int number, const char* what) {
    return std::to_string(number) + " " + what;
  };
  pieces.push_back(
      {" | ", "blocks " + std::to_string(done) + "/" + std::to_string(blocks.size()) + " done", 5});
  if (running > 0) pieces.push_back({", ", count(running, "running"), 4});
  if (retried > 0) pieces.push_back({", ", count(retried, "retried"), 1});
  if (quarantined > 0) pieces.push_back({", ", count(quarantined, "quarantined"), 6});
  if (worst.layers.empty()) return;
  std::string text = "worst MSE ";
  // A block that was trained and whose error nobody knows could be the worst.
  if (measured < begun)
    text += "(" + std::to_string(measured) + " of " + std::to_string(blocks.size()) + " blocks) ";
  text += "layer " + std::to_string(worst.worst_layer()) + " " + number_text(worst.worst());
  pieces.push_back({" | ", text, 2});
}

}  // namespace

double BlockMse::mean() const {
  double sum = 0.0;
  int count = 0;
  for (const double mse : layers) {
    if (std::isnan(mse)) continue;
    sum += mse;
    ++count;
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / count;
}

double BlockMse::worst() const {
  const int layer = worst_layer();
  return layer < 0 ? std::numeric_limits<double>::quiet_NaN()
                   : layers[static_cast<std::size_t>(layer - first_layer)];
}

int BlockMse::worst_layer() const {
  int worst = -1;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool is_first = worst < 0 && !std::isnan(layers[i]);
    if (is_first || (worst >= 0 && layers[i] > layers[static_cast<std::size_t>(worst)]))
      worst = static_cast<int>(i);
  }
  return worst < 0 ? -1 : first_layer + worst;
}

BlockMse mse_of(const TaskStatus& transfer) {
  BlockMse mse{{}, transfer.first_layer};
  if (transfer.result.is_object() && transfer.result.contains("layers")) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    for (const nlohmann::json& layer : transfer.result["layers"]) {
      // Layers that keep softmax attention are not in the result.
      const int at = layer.value("layer", mse.first_layer + static_cast<int>(mse.layers.size()));
      const auto index = static_cast<std::size_t>(std::max(0, at - mse.first_layer));
      if (index >= mse.layers.size()) mse.layers.resize(index + 1, kNone);
      const double found = number_or_nan(layer, "mse");
      // JSON has no infinity: an error without a number is of a layer that diverged.
      mse.layers[index] = std::isnan(found) ? std::numeric_limits<double>::infinity() : found;
    }
  } else if (transfer.progress && !transfer.progress->layer_mse.empty()) {
    mse.layers = transfer.progress->layer_mse;
  } else {
    mse.layers = transfer.layer_mse;
  }
  return mse;
}

std::string status_line(const RunStatus& status, int width) {
  std::vector<Piece> pieces;
  if (status.is_stopping) pieces.push_back({" | ", stopping_text(status), 9});
  add_blocks(status, pieces);
  double eta = 0.0;
  bool is_running = false;
  for (const StageStatus& stage : status.stages) {
    if (stage.running == 0 || stage.done >= stage.total) continue;
    is_running = true;
    const FinetuneText text = stage.stage == "finetune" ? finetune_text(status) : FinetuneText{};
    pieces.push_back(
        {" | ", stage.stage + " " + (text.step.empty() ? percent(stage.fraction) : text.step), 8});
    if (!text.loss.empty()) pieces.push_back({"  ", text.loss, 3});
    eta = std::max(eta, stage.eta_seconds.value_or(0.0));
  }
  if (status.fraction) pieces.push_back({" | ", "total " + percent(*status.fraction), 7});
  if (status.eta_seconds) eta = *status.eta_seconds;
  // Of one stage it is no answer where the whole is known.
  else if (status.fraction)
    eta = 0.0;
  if (!status.is_stopping && (eta > 0.0 || (is_running && status.state == "running")))
    pieces.push_back({" | ", "eta " + (eta > 0.0 ? duration_text(eta) : "-"), 10});
  return join(std::move(pieces), width);
}

std::vector<std::string> stage_lines(const RunStatus& status, int width) {
  std::vector<std::string> lines;
  const auto begin_of = [width](std::string name, double fraction) {
    name.resize(9, ' ');
    std::string share = percent(fraction);
    share.insert(0, 4 - std::min<std::size_t>(4, share.size()), ' ');
    return name + bar(fraction, width >= 60 ? 18 : 11) + share;
  };
  for (const StageStatus& stage : status.stages) {
    if (stage.total == 0) continue;
    // The narrowest terminal cuts at the end, so what matters most comes first.
    const FinetuneText text = stage.stage == "finetune" ? finetune_text(status) : FinetuneText{};
    std::string tail = " ";
    tail += text.step.empty() ? std::to_string(stage.done) + "/" + std::to_string(stage.total)
                              : text.step;
    if (!text.loss.empty()) tail += "  " + text.loss;
    if (stage.done < stage.total && stage.eta_seconds) {
      tail += "  eta " + duration_text(*stage.eta_seconds);
    }
    if (stage.running > 0) tail += "  " + std::to_string(stage.running) + " running";
    if (stage.quarantined > 0) tail += "  " + std::to_string(stage.quarantined) + " quarantined";
    if (stage.seconds > 0) tail += "  " + duration_text(stage.seconds);
    lines.push_back(fit(begin_of(stage.stage, stage.fraction) + tail, width));
  }
  if (status.fraction && *status.fraction < 1.0) {
    const std::string eta =
        status.eta_seconds ? " eta " + duration_text(*status.eta_seconds) + " to the end" : "";
    lines.push_back(fit(begin_of("total", *status.fraction) + eta, width));
  }
  return lines;
}

std::vector<std::string> block_lines(const RunStatus& status, int width) {
  Table table;
  table.column("block", 9, true).column("layers", 4).column("state", 8).column("step", 5, true);
  table.column("MSE", 7, true).column("worst", 6, true).column("at", 3, true);
  table.column("tries", 2, true);
  const std::vector<const TaskStatus*> tasks = transfers(status);
  if (tasks.empty()) return {};
  const bool shows_memory = width >= kRoomForMemory &&
                            std::any_of(tasks.begin(), tasks.end(), [](const TaskStatus* task) {
                              return !memory_text(*task).empty();
                            });
  if (shows_memory) table.column("memory", 1, true);
  for (const TaskStatus* task : tasks) {
    const BlockMse mse = mse_of(*task);
    std::vector<std::string> cells = {
        std::to_string(task->block),
        range_text(task->first_layer, task->num_layers),
        task->state,
        steps_text(*task),
        number_text(mse.mean()),
        number_text(mse.worst()),
        mse.worst_layer() < 0 ? "" : "L" + std::to_string(mse.worst_layer()),
        std::to_string(task->tries())};
    if (shows_memory) cells.push_back(memory_text(*task));
    table.row(std::move(cells));
  }
  std::vector<std::string> lines = table.render(width);
  // The notes take what room is left.
  std::size_t widest = 0;
  for (const std::string& line : lines) widest = std::max(widest, line.size());
  const int room = width - static_cast<int>(widest) - 2;
  for (std::size_t i = 0; room >= kNarrowestNote && i < tasks.size(); ++i) {
    const std::string note = one_line(note_of(*tasks[i]));
    if (note.empty()) continue;
    lines[i + 1].resize(widest + 2, ' ');
    lines[i + 1] += fit(note, room);
  }
  return lines;
}

std::vector<std::string> layer_lines(const RunStatus& status, int width) {
  constexpr std::size_t kLabel = 8, kCell = 10;
  const std::size_t cells_in_a_line =
      std::max<std::size_t>(1, (static_cast<std::size_t>(std::max(0, width)) - kLabel) / kCell);
  std::vector<std::string> lines;
  for (const TaskStatus* task : transfers(status)) {
    const BlockMse mse = mse_of(*task);
    std::string line = "L" + range_text(task->first_layer, task->num_layers);
    for (std::size_t i = 0; i < mse.layers.size(); ++i) {
      const std::size_t cell = i % cells_in_a_line;
      if (i > 0 && cell == 0) lines.push_back(fit(std::exchange(line, ""), width));
      line.resize(std::max(line.size(), kLabel + kCell * cell), ' ');
      line += number_text(mse.layers[i]);
    }
    if (!mse.layers.empty()) lines.push_back(fit(line, width));
  }
  if (!lines.empty())
    lines.insert(lines.begin(), fit("MSE of each layer at its last validation", width));
  return lines;
}

std::vector<std::string> worker_lines(const RunStatus& status, int width) {
  Table table;
  table.column("worker", 9)
      .column("host", 4)
      .column("device", 2)
      .column("doing", 8)
      .column("heard", 6, true);
  for (const WorkerStatus& worker : status.workers) {
    const std::string doing = worker.task.empty() ? worker.phase : worker.task;
    table.row({worker.uuid,
               worker.host,
               worker.device,
               doing,
               duration_text(worker.seconds_since_heartbeat)});
  }
  return table.empty() ? std::vector<std::string>{} : table.render(width);
}

std::vector<std::string> result_lines(const RunStatus& status, int width) {
  Table table;
  table.column("evaluated", 9).column("perplexity", 8, true);
  for (const char* subject : {"teacher", "transfer", "lora"}) {  // as the stages follow each other
    const TaskStatus* task = status.task(std::string("evaluate/") + subject);
    if (task == nullptr || !task->result.is_object()) continue;
    table.row({subject, number_text(number_or_nan(task->result, "perplexity"))});
  }
  return table.empty() ? std::vector<std::string>{} : table.render(width);
}

std::vector<std::string> loss_lines(const RunStatus& status, int width) {
  std::string text;
  for (const char* stage : {"transfer", "finetune"}) {
    std::int64_t steps = 0;
    for (const TaskStatus& task : status.tasks) steps += task.stage == stage ? task.lost_steps : 0;
    if (steps > 0) text += (text.empty() ? "" : ", ") + counted(steps, "step") + " of " + stage;
  }
  if (text.empty()) return {};
  return {fit("lost to failures and done again: " + text, width)};
}

std::vector<std::string> whole_view(const RunStatus& status, int width) {
  std::vector<std::string> lines;
  std::string head = "run " + status.run + ": " + status.state;
  if (status.state == "running") {
    if (status.is_stopping) head += ", " + stopping_text(status);
    head += ", term " + std::to_string(status.term) + " on " + status.host + " (pid " +
            std::to_string(status.pid) + ")";
  }
  if (status.state == "preparing")
    head += " (tokens) on " + status.host + " (pid " + std::to_string(status.pid) + ")";
  lines.push_back(fit(one_line(head), width));
  append(lines, stage_lines(status, width));
  append(lines, block_lines(status, width));
  append(lines, loss_lines(status, width));
  append(lines, worker_lines(status, width));
  append(lines, result_lines(status, width));
  if (!status.warnings.empty()) lines.emplace_back();
  for (const std::string& warning : status.warnings) {
    lines.push_back(fit("warning: " + one_line(warning), width));
  }
  return lines;
}

}  // namespace hedgerow::coordinator::cli
