#include "coordinator/serve/history_recorder.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <span>

#include "coordinator/state/fold.hpp"
#include "storage/base/error.hpp"
#include "storage/base/utc.hpp"
#include "storage/files/file.hpp"
#include "storage/history/columns.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr double kRunRowEvery = 10.0;  // seconds
constexpr std::size_t kMaxReadAtOnce = 4U << 20, kMaxLine = 1U << 20;
constexpr std::size_t kMaxAttentionBytes = 64U << 10;
// More than any model has heads (126 layers of 128): what a worker calls a layer is its own.
constexpr std::size_t kMaxSeries = 16'384, kMaxColumns = 256;

const std::vector<std::string> kRunColumns = {
    "workers", "running", "disk_free_bytes", "tokens_per_second"};

float number_of(const nlohmann::json& json) {
  return json.is_number() ? json.get<float>() : std::numeric_limits<float>::quiet_NaN();
}

// Every number of a line by its column, but for what says whose and when it is: "entropy": [1, 2]
// as "entropy/0" and "entropy/1", "update_norms": {"q_proj": 1} as "update_norm/q_proj";
// "update_sums" alike.
std::map<std::string, float> numbers_of_line(const nlohmann::json& json) {
  std::map<std::string, float> numbers;
  const auto add = [&](const std::string& name, const nlohmann::json& value) {
    if (value.is_number() || value.is_null()) numbers[name] = number_of(value);
  };
  for (const auto& [key, value] : json.items()) {
    if (key == "step" || key == "layer" || key == "head") continue;
    constexpr std::string_view kValidation = "validation_";
    const std::string name = key == "update_norms"          ? "update_norm"
                             : key == "update_sums"         ? "update_sum"
                             : key.starts_with(kValidation) ? key.substr(kValidation.size())
                                                            : key;
    if (value.is_structured()) {
      for (const auto& [part, number] : value.items()) add(name + "/" + part, number);
    } else {
      add(name, value);
    }
  }
  return numbers;
}

// Whose numbers a line of a stage has; empty: that is not known.
std::string series_of_line(Stage stage, const nlohmann::json& json) {
  if (stage == Stage::kFinetune)
    return json.contains("validation_loss") ? "finetune/validation" : "finetune";
  std::string name;
  for (const char* word : {"layer", "head"}) {
    const auto index = json.find(word);
    if (index == json.end()) continue;
    if (!index->is_number_integer()) return "";
    name += (name.empty() ? "" : "/") + std::string(word) + "/" + std::to_string(index->get<int>());
  }
  return name.starts_with("layer/") ? name : "";
}

void copy_progress(const wire::Progress& progress, storage::HistoryAttempt& attempt) {
  attempt.steps = progress.step;
  attempt.tokens = progress.tokens;
  attempt.seconds = progress.seconds;
  attempt.seconds_waited_on_data = progress.seconds_waited_on_data;
  attempt.host_bytes = progress.peak_memory.host_bytes;
  attempt.device_bytes = progress.peak_memory.device_bytes;
}

// A number of a result, which is its worker's own and may hold anything.
template <typename Number>
void copy_number(const nlohmann::json& result, const char* key, Number& number) {
  const auto found = result.find(key);
  if (found != result.end() && found->is_number()) found->get_to(number);
}

// Whether an event is worth a line to a later reader: not each grant, shard and checkpoint.
bool is_told(const Event& event) {
  return !std::holds_alternative<Granted>(event) &&
         !std::holds_alternative<ShardCommitted>(event) &&
         !std::holds_alternative<CheckpointCommitted>(event) &&
         !std::holds_alternative<BoundaryDropped>(event) &&
         !std::holds_alternative<LogitsDropped>(event);
}

}  // namespace

HistoryRecorder::HistoryRecorder(storage::RunLayout layout, std::uint64_t term)
    : layout_(std::move(layout)) {
  try {
    writer_.emplace(layout_, term);
  } catch (const std::exception& error) {
    problem_ = error.what();
  }
}

void HistoryRecorder::note_start(std::uint64_t term, const std::string& host, double now) {
  if (writer_)
    writer_->append(
        storage::HistoryEvent{now,
                              "run",
                              "term_started",
                              "coordinator of term " + std::to_string(term) + " began on " + host});
}

template <typename Work>
std::string HistoryRecorder::guarded(const Work& work) {
  if (writer_) {
    try {
      work();
      writer_->flush();
    } catch (const std::exception& error) {
      // A frame that is half there ends the segment: the next term begins another.
      const auto* ours = dynamic_cast<const storage::Error*>(&error);
      // A full disk ends the run, which then says so itself.
      if (ours == nullptr || ours->kind() != storage::ErrorKind::kExhausted)
        problem_ = error.what();
      writer_.reset();
    }
  }
  return std::exchange(problem_, {});
}

std::string HistoryRecorder::catch_up(const State& state, double now) {
  return guarded([&] { look_back(state, now); });
}

void HistoryRecorder::on_event(const RecordedEvent& recorded, double now) {
  if (!writer_) return;
  const auto end = [&](std::uint64_t token, const char* outcome, const std::string& reason) {
    if (const auto open = open_.find(token); open != open_.end()) {
      open->second.outcome = outcome;
      open->second.reason = reason;
    }
  };
  if (const auto* granted = std::get_if<Granted>(&recorded.event)) {
    Open open = opened(granted->task);
    open.attempt.token = granted->token;
    open.attempt.task = to_string(granted->task);
    open.attempt.worker = granted->worker;
    open.attempt.started = now;
    open_.emplace(granted->token, std::move(open));
  } else if (const auto* done = std::get_if<TaskDone>(&recorded.event)) {
    end(done->token, "done", "");
    // Of pieces there may be thousands.
    if (recorded.subject.find("/p") != std::string::npos) return;
  } else if (const auto* failed = std::get_if<TaskFailed>(&recorded.event)) {
    end(failed->token, "failed", failed->message);
  } else if (const auto* released = std::get_if<TaskReleased>(&recorded.event)) {
    end(released->token, "released", released->reason);
  } else if (const auto* revoked = std::get_if<LeaseRevoked>(&recorded.event)) {
    end(revoked->token, "revoked", revoked->reason);
  }
  if (!is_told(recorded.event)) return;
  writer_->append(storage::HistoryEvent{now,
                                        recorded.subject.empty() ? "run" : recorded.subject,
                                        std::string(type_of(recorded.event)),
                                        describe(recorded.event)});
}

std::string HistoryRecorder::update(const Dispatcher& dispatcher, double now) {
  return guarded([&] {
    if (!std::exchange(has_looked_back_, true)) look_back(dispatcher.state(), now);
    open_attempts(dispatcher, now);
    for (auto& [token, open] : open_) {
      const wire::Progress* progress = dispatcher.leases().progress(token);
      if (progress == nullptr) continue;
      copy_progress(*progress, open.attempt);
      if (progress->step == open.seen_step && progress->phase == open.seen_phase) continue;
      open.seen_step = progress->step;
      open.seen_phase = progress->phase;
      follow(token, open, now);
    }
    for (auto open = open_.begin(); open != open_.end();) {
      if (dispatcher.state().grants.contains(open->first)) {
        ++open;
        continue;
      }
      close(open->first, open->second, dispatcher.state(), now);
      open = open_.erase(open);
    }
    record_run(dispatcher, now);
  });
}

HistoryRecorder::Open HistoryRecorder::opened(const TaskId& task) {
  Open open;
  open.task = task;
  return open;
}

void HistoryRecorder::open_attempts(const Dispatcher& dispatcher, double now) {
  const storage::History& history = writer_->history();
  for (const auto& [token, id] : dispatcher.state().grants) {
    const auto [entry, is_new] = open_.try_emplace(token, opened(id));
    Open& open = entry->second;
    if (std::exchange(open.is_written, true)) continue;
    if (const auto known = history.attempts.find(token); known != history.attempts.end()) {
      open.attempt = known->second;
      continue;
    }
    if (is_new) {
      open.attempt.token = token;
      open.attempt.task = to_string(id);
      open.attempt.worker = dispatcher.state().task(id).worker;
      open.attempt.started = now;
    }
    const auto worker = dispatcher.workers().find(open.attempt.worker);
    if (worker != dispatcher.workers().end()) open.attempt.host = worker->second.host;
    writer_->append(open.attempt);
  }
}

void HistoryRecorder::look_back(const State& state, double now) {
  const auto& known = writer_->history().attempts;
  // The last attempt at each task: its numbers may not be there yet.
  std::set<std::uint64_t> last;
  for (const auto& [id, task] : state.tasks) {
    if (task.token == 0) continue;
    last.insert(task.token);
    const auto found = known.find(task.token);
    if (state.grants.contains(task.token) || (found != known.end() && found->second.ended != 0.0))
      continue;
    Open open = opened(id);
    if (found != known.end()) {
      open.attempt = found->second;
    } else {
      open.attempt.token = task.token;
      open.attempt.task = to_string(id);
      open.attempt.worker = task.worker;
    }
    close(task.token, open, state, now);
  }
  // Earlier ones: the next attempt has their numbers, or went on from them.
  std::vector<storage::HistoryAttempt> left;
  for (const auto& [token, attempt] : known)
    if (attempt.ended == 0.0 && !last.contains(token)) left.push_back(attempt);
  for (storage::HistoryAttempt& attempt : left) {
    attempt.ended = now;
    attempt.outcome = "revoked";
    writer_->append(attempt);
  }
}

bool HistoryRecorder::follow(std::uint64_t token, Open& open, double now) {
  if (!wire::has_checkpoints(open.task.stage)) return false;
  const fs::path path =
      layout_.resolve(storage::RunLayout::attempt_directory(token) + "/metrics.jsonl");
  const auto noted = writer_->history().metrics_read.find(token);
  const std::uint64_t begin = noted == writer_->history().metrics_read.end() ? 0 : noted->second;
  std::error_code none;
  const std::uint64_t size = fs::file_size(path, none);
  if (none || size <= begin) return false;
  std::string bytes(std::min<std::uint64_t>(size - begin, kMaxReadAtOnce), '\0');
  try {
    const storage::File file = storage::File::open_read(path);
    bytes.resize(file.read_some(std::as_writable_bytes(std::span(bytes)), begin));
  } catch (const storage::Error&) {
    return false;  // what is no file, or cannot be read now, costs this attempt's numbers alone
  }
  std::size_t end = bytes.rfind('\n');  // the last line may not be whole yet
  if (end == std::string::npos) {
    if (bytes.size() < kMaxLine) return false;
    end = bytes.size() - 1;  // no line of ours is so long
  }
  for (std::size_t at = 0; at <= end;) {
    const std::size_t stop = std::min(bytes.find('\n', at), end);
    take_line(bytes.substr(at, stop - at), open, now);
    at = stop + 1;
  }
  writer_->note_metrics_read(token, begin + end + 1);
  return true;
}

void HistoryRecorder::take_line(const std::string& line, Open& open, double now) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  if (const auto map = json.find("attention"); map != json.end()) {
    storage::HistoryAttention attention;
    try {
      map->get_to(attention);
    } catch (const nlohmann::json::exception&) {
      return;
    }
    if (attention.softmax.size() + attention.student.size() <= kMaxAttentionBytes)
      writer_->append(attention);
    return;
  }
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return;
  const std::string name = series_of_line(open.task.stage, json);
  const std::map<std::string, float> numbers = numbers_of_line(json);
  if (name.empty() || numbers.empty()) return;
  const auto& all = writer_->history().series;
  const auto known = all.find(name);
  if (known == all.end() && all.size() >= kMaxSeries) return;
  // Those that it has, in their order, and behind them those that are new.
  std::vector<std::string> columns, added;
  if (known != all.end()) columns = known->second.columns;
  for (const auto& [column, number] : numbers)
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) added.push_back(column);
  storage::sort_columns(storage::series_key(name).kind, added);
  columns.insert(columns.end(), added.begin(), added.end());
  if (columns.size() > kMaxColumns) return;
  storage::HistoryRow row{step->get<std::int64_t>(), now, {}};
  for (const std::string& column : columns) {
    const auto number = numbers.find(column);
    row.values.push_back(number == numbers.end() ? std::numeric_limits<float>::quiet_NaN()
                                                 : number->second);
  }
  writer_->offer(name, columns, std::move(row));
  open.series.insert(name);
}

void HistoryRecorder::close(std::uint64_t token, Open& open, const State& state, double now) {
  while (follow(token, open, now)) {
  }
  for (const std::string& series : open.series) writer_->take_last(series);
  open.attempt.ended = now;
  const auto task = state.tasks.find(open.task);
  const bool is_done = task != state.tasks.end() && task->second.state == TaskState::kDone &&
                       task->second.token == token;
  open.attempt.outcome = !open.outcome.empty() ? open.outcome : is_done ? "done" : "revoked";
  open.attempt.reason = open.reason;
  if (is_done) {
    const nlohmann::json result = result_of(task->second);
    if (result.is_object()) {
      copy_number(result, "tokens", open.attempt.tokens);
      copy_number(result, "steps", open.attempt.steps);
      copy_number(result, "seconds", open.attempt.seconds);
      copy_number(result, "seconds_waited_on_data", open.attempt.seconds_waited_on_data);
    }
  }
  if (open.attempt.started == 0.0) open.attempt.started = now - open.attempt.seconds;
  writer_->append(open.attempt);
}

void HistoryRecorder::record_run(const Dispatcher& dispatcher, double now) {
  if (now < next_run_row_) return;
  next_run_row_ = now + kRunRowEvery;
  double tokens_per_second = 0.0;
  for (const auto& [token, open] : open_) {
    if (const auto speed = dispatcher.leases().speed(token)) {
      tokens_per_second += speed->tokens_per_second;
    }
  }
  storage::HistoryRow row{static_cast<std::int64_t>(now), now, {}};
  row.values = {static_cast<float>(dispatcher.workers().size()),
                static_cast<float>(dispatcher.state().grants.size()),
                static_cast<float>(storage::free_bytes(layout_.root())),
                static_cast<float>(tokens_per_second)};
  writer_->offer("run", kRunColumns, std::move(row));
}

}  // namespace hedgerow::coordinator
