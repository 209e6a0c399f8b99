#include "coordinator/cli/terminal/view.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "coordinator/cli/terminal/control.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/history_lines.hpp"

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

// Memory of the GPU, else of the process.
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

// The worker of the task, or why it has none.
std::string note_of(const TaskStatus& task) {
  if (task.state != "running") return task.reason;
  std::string note = task.worker;
  if (task.progress && !task.progress->phase.empty()) note += ", " + task.progress->phase;
  if (task.seconds_since_progress > kSilentWorker) {
    note += ", no progress for " + duration_text(task.seconds_since_progress);
  }
  return note;
}

std::string speed_text(const Speed& speed, Stage stage) {
  if (!wire::has_checkpoints(stage))
    return std::to_string(std::llround(speed.tokens_per_second)) + " tokens/s";
  const double seconds = speed.seconds_per_step;
  return (seconds < 100.0 ? number_text(seconds, 3) : duration_text(seconds)) + " s/step";
}

// The stage of the task that it has; nullopt: none.
std::optional<Stage> stage_of(const WorkerStatus& worker) {
  return wire::task_kind_from(worker.task.substr(0, worker.task.find('/')));
}

// Speed of one worker, on the average of those that are at this stage; empty: of none it is known.
std::string mean_speed_text(const RunStatus& status, Stage stage) {
  Speed mean;
  int count = 0;
  for (const WorkerStatus& worker : status.workers) {
    if (!worker.speed || stage_of(worker) != stage) continue;
    mean.seconds_per_step += worker.speed->seconds_per_step;
    mean.tokens_per_second += worker.speed->tokens_per_second;
    ++count;
  }
  if (count == 0) return "";
  return speed_text({mean.seconds_per_step / count, mean.tokens_per_second / count}, stage);
}

std::vector<const TaskStatus*> transfers(const RunStatus& status) {
  std::vector<const TaskStatus*> tasks;
  for (const TaskStatus& task : status.tasks) {
    if (task.stage == Stage::kTransfer) tasks.push_back(&task);
  }
  return tasks;
}

// Those that run or are in trouble, and of the others the next ones, as far as the rows of a table
// go: one is its title, and one says what is left out.
std::vector<const TaskStatus*> selected(const std::vector<const TaskStatus*>& all,
                                        std::size_t max_rows) {
  if (all.size() + 1 <= max_rows) return all;
  const auto rank = [](const TaskStatus* task) {
    if (task->state == "running" || task->state == "quarantined") return 0;
    if (task->state == "done") return 3;
    return task->tries() > 1 || task->checkpoint_step > 0 ? 1 : 2;
  };
  std::vector<const TaskStatus*> tasks = all;
  std::stable_sort(tasks.begin(), tasks.end(), [&](const TaskStatus* a, const TaskStatus* b) {
    return rank(a) < rank(b);
  });
  tasks.resize(std::min(tasks.size(), std::max<std::size_t>(max_rows, 3) - 2));
  std::sort(tasks.begin(), tasks.end(), [](const TaskStatus* a, const TaskStatus* b) {
    return a->block < b->block;
  });
  return tasks;
}

// "... and 26 more: 20 done, 6 waiting".
std::string others_text(const std::vector<const TaskStatus*>& all,
                        const std::vector<const TaskStatus*>& shown) {
  std::map<std::string, int> counts;
  for (const TaskStatus* task : all) ++counts[task->state];
  for (const TaskStatus* task : shown) --counts[task->state];
  std::string text;
  for (const auto& [state, count] : counts) {
    if (count > 0) text += (text.empty() ? ": " : ", ") + std::to_string(count) + " " + state;
  }
  return "... and " + std::to_string(all.size() - shown.size()) + " more" + text;
}

std::string elapsed_text(const RunStatus& status) {
  return "elapsed " + duration_text(status.elapsed_seconds);
}

// "stopping: waiting for a checkpoint of finetune".
std::string stopping_text(const RunStatus& status) {
  std::string stages;
  for (const StageStatus& stage : status.stages) {
    if (stage.running > 0)
      stages += (stages.empty() ? "" : ", ") + std::string(to_string(stage.stage));
  }
  return stages.empty() ? "stopping" : "stopping: waiting for a checkpoint of " + stages;
}

// The control of an evaluation; nullptr: it has none.
const nlohmann::json* control_of(const nlohmann::json& result) {
  const auto columns = result.find("columns");
  if (columns == result.end() || !columns->is_object()) return nullptr;
  const auto control = columns->find("control");
  return control == columns->end() || !control->is_object() ? nullptr : &*control;
}

void add_blocks(const RunStatus& status,
                const storage::History* history,
                std::vector<Field>& fields) {
  int done = 0, running = 0, retried = 0, quarantined = 0, measured = 0, begun = 0;
  BlockMse worst;
  const std::vector<const TaskStatus*> blocks = transfers(status);
  for (const TaskStatus* task : blocks) {
    done += task->state == "done";
    running += task->state == "running";
    quarantined += task->state == "quarantined";
    retried += task->tries() > 1;
    const BlockMse mse = mse_of(*task, history);
    measured += mse.worst_layer() >= 0;
    begun += mse.worst_layer() >= 0 || task->checkpoint_step > 0;
    if (mse.worst() > (worst.layers.empty() ? 0.0 : worst.worst())) worst = mse;
  }
  const auto count = [](int number, const char* what) {
    return std::to_string(number) + " " + what;
  };
  fields.push_back(
      {" | ", "blocks " + std::to_string(done) + "/" + std::to_string(blocks.size()) + " done", 7});
  if (running > 0) fields.push_back({", ", count(running, "running"), 4});
  if (retried > 0) fields.push_back({", ", count(retried, "retried"), 1});
  if (quarantined > 0) fields.push_back({", ", count(quarantined, "quarantined"), 8});
  if (worst.layers.empty()) return;
  std::string text = "worst MSE ";
  // A trained block whose error is unknown could be the worst.
  if (measured < begun)
    text += "(" + std::to_string(measured) + " of " + std::to_string(blocks.size()) + " blocks) ";
  text += "layer " + std::to_string(worst.worst_layer()) + " " + number_text(worst.worst());
  fields.push_back({" | ", text, 2});
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

BlockMse mse_of(const TaskStatus& transfer, const storage::History* history) {
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
  } else if (history != nullptr && transfer.state != "done") {
    const auto attempt = history->attempts.find(transfer.token);
    const bool measures = transfer.progress && attempt != history->attempts.end();
    if (transfer.checkpoint_step == 0 && !measures) return mse;
    const double since = transfer.checkpoint_step > 0 ? 0.0 : attempt->second.started;
    mse.layers = last_mse(*history, transfer.first_layer, transfer.num_layers, since);
  }
  return mse;
}

std::string status_line(const RunStatus& status, int width, const storage::History* history) {
  std::vector<Field> fields;
  if (status.is_stopping) fields.push_back({" | ", stopping_text(status), 11});
  add_blocks(status, history, fields);
  double eta = 0.0;
  bool is_running = false;
  for (const StageStatus& stage : status.stages) {
    if (stage.running == 0 || stage.done >= stage.total) continue;
    is_running = true;
    const FinetuneText text =
        stage.stage == Stage::kFinetune ? finetune_text(status) : FinetuneText{};
    fields.push_back({" | ",
                      std::string(to_string(stage.stage)) + " " +
                          (text.step.empty() ? percent(stage.fraction) : text.step),
                      10});
    if (!text.loss.empty()) fields.push_back({"  ", text.loss, 3});
    if (const std::string speed = mean_speed_text(status, stage.stage); !speed.empty())
      fields.push_back({"  ", speed, 5});
    eta = std::max(eta, stage.eta_seconds.value_or(0.0));
  }
  if (status.fraction) fields.push_back({" | ", "total " + percent(*status.fraction), 9});
  if (status.elapsed_seconds > 0.0) fields.push_back({" | ", elapsed_text(status), 6});
  if (status.eta_seconds) eta = *status.eta_seconds;
  // The time of one stage is no answer where the whole is known.
  else if (status.fraction)
    eta = 0.0;
  if (!status.is_stopping && (eta > 0.0 || (is_running && status.state == "running")))
    fields.push_back({" | ", "eta " + (eta > 0.0 ? duration_text(eta) : "-"), 12});
  return join(std::move(fields), width);
}

std::string head_line(const RunStatus& status, int width) {
  const auto begin_of = [&](const std::string& name) {
    return Field{"", "run " + one_line(name) + ": " + status.state, 9};
  };
  std::vector<Field> fields{begin_of(status.run)};
  const auto add = [&](const std::string& text, int importance) {
    fields.push_back({", ", one_line(text), importance});
  };
  if (status.is_stopping && status.state == "running") add(stopping_text(status), 8);
  if (status.elapsed_seconds > 0.0) add(elapsed_text(status), 7);
  const bool is_preparing = status.state == "preparing";
  if (is_preparing) fields.push_back({" ", "(tokens)", 6});
  if (status.state == "running") add("term " + std::to_string(status.term), 5);
  if (status.state == "running" || is_preparing) {
    fields.push_back({" on ", one_line(status.host), 4});
    fields.push_back({" ", "(pid " + std::to_string(status.pid) + ")", 3});
  }
  // Where it is too long, the folders before the run say the least.
  const bool is_long = join(fields, kUnlimitedWidth).size() > static_cast<std::size_t>(width);
  const std::string name = std::filesystem::path(status.run).filename().string();
  if (is_long && !name.empty()) fields.front() = begin_of(name);
  return join(std::move(fields), width);
}

namespace {

std::string spending_text(const Spending& spending) {
  std::string text;
  if (spending.gpu_hours > 0.0) text = number_text(spending.gpu_hours, 3) + " GPU-hours";
  if (spending.cost) text += (text.empty() ? "cost " : ", cost ") + number_text(*spending.cost, 3);
  return text;
}

// "so far 12.3 GPU-hours, cost 41; to come 30.1 GPU-hours, cost 100"; empty: neither is known.
std::string spending_line(const RunStatus& status, int width) {
  std::vector<Field> fields;
  if (status.so_far) {
    if (const std::string text = spending_text(*status.so_far); !text.empty())
      fields.push_back({"", "so far " + text, 2});
  }
  if (status.to_come) {
    if (const std::string text = spending_text(*status.to_come); !text.empty())
      fields.push_back({"; ", "to come " + text, 1});
  }
  return join(std::move(fields), width);
}

// Beside what a stage has taken: " of 1m02s planned", and its memory. The first to go.
void add_planned(const StageStatus& stage, std::vector<Field>& fields) {
  if (!stage.planned) return;
  if (stage.planned->seconds > 0.0 && stage.seconds >= 0.1)
    fields.push_back({" ", "of " + duration_text(stage.planned->seconds) + " planned", 3});
  if (stage.memory_bytes == 0) return;
  std::string text = bytes_text(stage.memory_bytes);
  if (stage.planned->memory_bytes > 0) text += " of " + bytes_text(stage.planned->memory_bytes);
  fields.push_back({"  ", text, 2});
}

}  // namespace

std::vector<std::string> stage_lines(const RunStatus& status, int width) {
  std::vector<std::string> lines;
  const auto begin_of = [width](std::string name, double fraction) {
    name.resize(9, ' ');
    std::string share = percent(fraction);
    share.insert(0, 4 - std::min<std::size_t>(4, share.size()), ' ');
    return Field{"", name + bar(fraction, width >= 60 ? 18 : 11) + share, 11};
  };
  for (const StageStatus& stage : status.stages) {
    if (stage.total == 0) continue;
    const FinetuneText text =
        stage.stage == Stage::kFinetune ? finetune_text(status) : FinetuneText{};
    std::vector<Field> fields{begin_of(std::string(to_string(stage.stage)), stage.fraction)};
    fields.push_back({" ",
                      text.step.empty()
                          ? std::to_string(stage.done) + "/" + std::to_string(stage.total)
                          : text.step,
                      9});
    if (!text.loss.empty()) fields.push_back({"  ", text.loss, 5});
    if (stage.done < stage.total && stage.eta_seconds)
      fields.push_back({"  ", "eta " + duration_text(*stage.eta_seconds), 10});
    if (stage.seconds >= 0.1)
      fields.push_back({"  ", "elapsed " + duration_text(stage.seconds), 8});
    add_planned(stage, fields);
    if (stage.running > 0) fields.push_back({"  ", std::to_string(stage.running) + " running", 6});
    if (stage.quarantined > 0)
      fields.push_back({"  ", std::to_string(stage.quarantined) + " quarantined", 7});
    lines.push_back(join(std::move(fields), width));
  }
  if (status.fraction && *status.fraction < 1.0) {
    std::vector<Field> fields{begin_of("total", *status.fraction)};
    if (status.eta_seconds) {
      fields.push_back({" eta ", duration_text(*status.eta_seconds), 10});
      fields.push_back({" ", "to the end", 1});
    }
    lines.push_back(join(std::move(fields), width));
  }
  if (std::string line = spending_line(status, width); !line.empty())
    lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> block_lines(const RunStatus& status,
                                     int width,
                                     std::size_t max_rows,
                                     const storage::History* history,
                                     bool draws_heat) {
  Table table;
  table.column("block", 9, true).column("layers", 4).column("state", 8).column("step", 5, true);
  table.column("MSE", 7, true).column("worst", 6, true).column("at", 3, true);
  table.column("tries", 2, true);
  const std::vector<const TaskStatus*> all = transfers(status);
  if (all.empty()) return {};
  const std::vector<const TaskStatus*> tasks = selected(all, max_rows);
  const bool shows_memory = width >= kRoomForMemory &&
                            std::any_of(tasks.begin(), tasks.end(), [](const TaskStatus* task) {
                              return !memory_text(*task).empty();
                            });
  const bool shows_heat = draws_heat && history != nullptr && !history->series.empty();
  if (shows_heat) table.column("heat", 6);
  if (shows_memory) table.column("memory", 1, true);
  for (const TaskStatus* task : tasks) {
    const BlockMse mse = mse_of(*task, history);
    std::vector<std::string> cells = {
        std::to_string(task->block),
        range_text(task->first_layer, task->num_layers),
        task->state,
        steps_text(*task),
        number_text(mse.mean()),
        number_text(mse.worst()),
        mse.worst_layer() < 0 ? "" : "L" + std::to_string(mse.worst_layer()),
        std::to_string(task->tries())};
    if (shows_heat)
      cells.push_back("|" + heat_line(*history, task->first_layer, task->num_layers) + "|");
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
    lines[i + 1] += fit_words(note, room);
  }
  if (tasks.size() < all.size()) lines.push_back(fit_words(others_text(all, tasks), width));
  return lines;
}

std::vector<std::string> layer_lines(const RunStatus& status,
                                     int width,
                                     const storage::History* history,
                                     bool draws_heat) {
  constexpr std::size_t kGap = 2;
  constexpr int kDigits = 3;  // as many as fit, and enough to compare layers by
  constexpr int kSparkline = 10;
  std::map<int, std::string> sparklines;  // by the number of the cell
  std::vector<std::pair<std::string, std::string>> cells;
  for (const TaskStatus* task : transfers(status)) {
    const BlockMse mse = mse_of(*task, history);
    for (std::size_t i = 0; i < mse.layers.size(); ++i) {
      const int layer = task->first_layer + static_cast<int>(i);
      if (draws_heat && history != nullptr) {
        const std::string line = sparkline(*history, layer, kSparkline);
        if (!line.empty()) sparklines[static_cast<int>(cells.size())] = "|" + line + "|";
      }
      cells.emplace_back("L" + std::to_string(layer), number_text(mse.layers[i], kDigits));
    }
  }
  if (cells.empty()) return {};
  std::size_t name_width = 0, cell_width = 0;
  for (const auto& [name, mse] : cells) name_width = std::max(name_width, name.size() + 1);
  for (const auto& [name, mse] : cells) cell_width = std::max(cell_width, name_width + mse.size());
  const std::size_t value_width = cell_width + 1;
  if (!sparklines.empty()) cell_width = value_width + kSparkline + 2;
  const std::size_t num_columns = std::max<std::size_t>(
      1, (static_cast<std::size_t>(std::max(0, width)) + kGap) / (cell_width + kGap));
  std::vector<std::string> lines{fit_words(
      sparklines.empty()
          ? "MSE of each layer at its last validation"
          : "MSE of each layer, and its relative MSE so far: '@' is 1 and more, '.' 0.001",
      width)};
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::size_t column = i % num_columns;
    if (column == 0) lines.emplace_back();
    std::string& line = lines.back();
    line.resize(column * (cell_width + kGap), ' ');
    line += cells[i].first;
    line.resize(column * (cell_width + kGap) + name_width, ' ');
    line += cells[i].second;
    if (const auto found = sparklines.find(static_cast<int>(i)); found != sparklines.end()) {
      line.resize(column * (cell_width + kGap) + value_width, ' ');
      line += found->second;
    }
    line = fit(line, width);
  }
  return lines;
}

std::vector<std::string> worker_lines(const RunStatus& status, int width) {
  Table table;
  table.column("worker", 9)
      .column("host", 4)
      .column("device", 2)
      .column("doing", 8)
      .column("speed", 7, true)
      .column("heard", 6, true);
  for (const WorkerStatus& worker : status.workers) {
    const std::string doing = worker.task.empty() ? worker.phase : worker.task;
    table.row(
        {worker.uuid,
         worker.host,
         worker.device,
         doing,
         worker.speed ? speed_text(*worker.speed, stage_of(worker).value_or(Stage::kCapture)) : "",
         duration_text(worker.seconds_since_heartbeat)});
  }
  return table.empty() ? std::vector<std::string>{} : table.render(width);
}

std::string adapter_text(const TaskStatus& finetune) {
  const double best = number_or_nan(finetune.result, "best_step");
  const double steps = number_or_nan(finetune.result, "steps");
  if (std::isnan(best) || std::isnan(steps)) return "";
  const auto stopped = finetune.result.find("stopped_early");
  const bool is_stopped = stopped != finetune.result.end() && *stopped == true;
  return "adapter of step " + std::to_string(std::llround(best)) + " of " +
         std::to_string(std::llround(steps)) + ", the best by validation" +
         (is_stopped ? "; stopped early" : "") +
         (best == 0.0 ? "; no step made the student better" : "");
}

std::vector<std::string> result_lines(const RunStatus& status, int width) {
  std::vector<std::pair<std::string, const nlohmann::json*>> results;
  bool has_control = false;
  for (const char* subject : {"teacher", "transfer", "lora"}) {  // as the stages follow each other
    const TaskStatus* task = status.task(std::string("evaluate/") + subject);
    if (task == nullptr || !task->result.is_object()) continue;
    results.emplace_back(subject, &task->result);
    has_control |= control_of(task->result) != nullptr;
  }
  Table table;
  table.column("evaluated", 9).column("perplexity", 8, true);
  if (has_control) table.column("control", 7, true).column("gap closed", 6, true);
  for (const auto& [subject, result] : results) {
    std::vector<std::string> cells{subject, number_text(number_or_nan(*result, "perplexity"))};
    if (has_control) {
      const nlohmann::json* control = control_of(*result);
      cells.push_back(control == nullptr ? "-"
                                         : number_text(number_or_nan(*control, "perplexity")));
      cells.push_back(gap_text(*result));
    }
    table.row(std::move(cells));
  }
  std::vector<std::string> lines = table.empty() ? std::vector<std::string>{} : table.render(width);
  for (std::string& line : text_lines(status, width)) lines.push_back(std::move(line));
  if (const TaskStatus* finetune = status.task("finetune")) {
    const std::string adapter = adapter_text(*finetune);
    if (!adapter.empty()) lines.push_back(fit_words(adapter, width));
  }
  for (std::string& line : untrained_lines(status, width)) lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> loss_lines(const RunStatus& status, int width) {
  std::string text;
  for (const Stage stage : {Stage::kTransfer, Stage::kFinetune}) {
    std::int64_t steps = 0;
    for (const TaskStatus& task : status.tasks) steps += task.stage == stage ? task.lost_steps : 0;
    if (steps > 0)
      text += (text.empty() ? "" : ", ") + counted(steps, "step") + " of " +
              std::string(to_string(stage));
  }
  if (text.empty()) return {};
  return {fit_words("lost to failures and done again: " + text, width)};
}

std::vector<std::string> warning_lines(const RunStatus& status, int width) {
  std::vector<std::string> lines;
  std::vector<std::string> warnings = status.warnings;
  // The line of its block says why a transfer waits.
  RunStatus others;
  std::copy_if(status.tasks.begin(),
               status.tasks.end(),
               std::back_inserter(others.tasks),
               [](const TaskStatus& task) { return task.stage != Stage::kTransfer; });
  if (const std::string text = quarantine_text(others); !text.empty())
    warnings.insert(warnings.begin(), text);
  for (const std::string& warning : warnings) {
    std::istringstream wrapped(wrap("warning: " + one_line(warning), width, /*indent=*/4));
    for (std::string line; std::getline(wrapped, line);) lines.push_back(fit(line, width));
  }
  return lines;
}

}  // namespace hedgerow::coordinator::cli
