// What a run has measured, in time: series of numbers by step, attempts (leases) with their cost,
// events worth a line, attention maps. A value in memory, made by applying frames in their order;
// storage/history/history_file.hpp keeps those on disk. No clock: times are UTC, seconds since
// 1970.
//
// Bounded: a series of more than 2 x kMaxRows rows loses every second one and takes every second
// from then on, and so forth, so that a run of any length keeps between kMaxRows and 2 x kMaxRows
// rows a series, evenly spread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace hedgerow::storage {

struct HistoryRow {
  std::int64_t step = 0;
  double time = 0.0;
  std::vector<float> values;  // one a column; NaN: not measured
};

// "layer/12", "layer/12/head/3", "finetune", "finetune/validation", "run" (of the whole run; its
// step is a second). What their columns are: storage/history/columns.hpp.
struct HistorySeries {
  static constexpr std::size_t kMaxRows = 256;

  std::vector<std::string> columns;
  std::vector<HistoryRow> rows;  // steps only grow
  std::int64_t stride = 1;       // of the rows that are offered, every so many-th is kept
  std::int64_t num_offered = 0;  // since the stride was set

  // A step that is not above the last: an attempt went on from a checkpoint, or began again, and
  // what stands at that step and after it has not happened.
  void append(HistoryRow row);
  // Other columns from here on. Rows keep the values of those that stay, and have NaN for those
  // that are new; where none stays, the series begins again.
  void change_columns(std::vector<std::string> changed);
};

struct HistoryAttempt {
  std::uint64_t token = 0;
  std::string task{}, worker{}, host{};     // "transfer/b0003", a worker's uuid, its host
  double started = 0.0, ended = 0.0;  // ended 0: it is under way
  std::string outcome{};                // "", "done", "failed", "released", "revoked"
  std::string reason{};                 // of a failure
  std::int64_t steps = 0, tokens = 0;
  double seconds = 0.0, seconds_waited_on_data = 0.0;
  std::uint64_t host_bytes = 0, device_bytes = 0;  // peaks
};

struct HistoryEvent {
  double time = 0.0;
  std::string subject, type, text;  // "transfer/b0003", "failed", "failed (corrupt): shard ..."
};

// Attention weights of one head on the first validation sequence, teacher's and student's, pooled:
// a byte is 255 x clamp(1 + log10(weight) / 4), so 1e-4 and less is 0.
struct HistoryAttention {
  int layer = 0, head = 0;
  std::int64_t step = 0;
  int rows = 0, columns = 0;
  std::string softmax{}, student{};  // base64 of rows x columns bytes, queries down, keys across
};

struct History {
  std::map<std::string, HistorySeries> series;
  std::map<std::uint64_t, HistoryAttempt> attempts;  // by fencing token
  std::vector<HistoryEvent> events;
  std::map<std::pair<int, int>, HistoryAttention> attention;  // by layer and head
  // How much of an attempt's metrics.jsonl is in here, in bytes.
  std::map<std::uint64_t, std::uint64_t> metrics_read;
};

void to_json(nlohmann::json& json, const HistoryAttempt& attempt);
void from_json(const nlohmann::json& json, HistoryAttempt& attempt);
void to_json(nlohmann::json& json, const HistoryEvent& event);
void from_json(const nlohmann::json& json, HistoryEvent& event);
void to_json(nlohmann::json& json, const HistoryAttention& attention);
void from_json(const nlohmann::json& json, HistoryAttention& attention);

}  // namespace hedgerow::storage
