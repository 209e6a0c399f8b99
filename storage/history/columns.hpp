// What the columns of a history's series are: one row a column, from which the terminal, the page,
// the report and /metrics take names, titles and units. A series may have columns that have no row
// here: they are recorded, and shown as JSON, CSV and in TensorBoard alone.
//
// A new measure is a number in a line of metrics.jsonl and a row of this table. Measured by head,
// it is either a line {"layer": 3, "head": 5, "step": 20, "entropy": 1.5}, whose series is
// "layer/3/head/5" (rows of series "layer/head"), or a list in the layer's own line,
// {"layer": 3, "step": 20, "entropy": [1.5, ...]}, whose columns are "entropy/0", "entropy/1", ...
// (one row, "entropy/", with index "head").
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hedgerow::storage {

struct HistoryColumn {
  std::string_view series;         // SeriesKey::kind
  std::string_view name;           // of the column; with a '/' at its end: of all that begin so
  std::string_view label;          // "relative MSE"
  std::string_view brief{};        // where there is little room; empty: label
  std::string_view help{};         // a sentence
  std::string_view unit{};         // "share" (0 to 1), "nats", "bytes", "tokens/s"
  bool is_log = false;             // is drawn on a log scale
  std::string_view prometheus{};   // of its last value; empty: not in /metrics
  std::string_view index{};        // of a name with '/': the label of what follows it
  bool is_of_running_run = false;  // says nothing once the run has stopped
  // In tables: columns stand in this order, greatest first, and the least goes where there is no
  // room. Negative: it is in none.
  int importance = -1;
  bool is_on_heat_map = false;  // the page's heat map may show it
  std::string_view chart{};     // of the page, its title: columns that name one share it
  std::string_view line{};      // in the chart's legend; empty: brief
  bool is_reference = false;    // its line is dashed
  int color = 0;                // of its line, 1 to 4; 0: by its place in the chart

  [[nodiscard]] constexpr std::string_view short_label() const {
    return brief.empty() ? label : brief;
  }
};

// In the order in which new series have them.
[[nodiscard]] std::span<const HistoryColumn> history_columns();

// "layer/3/head/5": kind "layer/head", labels {layer, 3}, {head, 5}; "finetune": itself, without.
struct SeriesKey {
  std::string kind;
  std::vector<std::pair<std::string, std::string>> labels;
};
[[nodiscard]] SeriesKey series_key(std::string_view series);

// The row of a column; nullptr: there is none.
[[nodiscard]] const HistoryColumn* find_column(
    std::string_view kind,
    std::string_view name,
    std::span<const HistoryColumn> columns = history_columns());
// Those of one kind of series that stand in tables, in their order there.
[[nodiscard]] std::vector<HistoryColumn> columns_of_tables(std::string_view kind);

// Brings names of one kind of series into the table's order, those without a row behind it.
void sort_columns(std::string_view kind, std::vector<std::string>& names);

// The columns of an evaluation (coordinator/README.md "Results"), in the order of the tables that
// show them. Behind the label "window of" stands its size; the student is called as its subject is.
struct EvaluateColumn {
  std::string_view name, label;
};
inline constexpr std::array<EvaluateColumn, 6> kEvaluateColumns{{{"teacher", "teacher"},
                                                                 {"control", "control"},
                                                                 {"equal_window", "window of"},
                                                                 {"recall_off", "without recall"},
                                                                 {"student", "student"},
                                                                 {"linear_off", "linear off"}}};

// Array of objects, as the page has it (coordinator/web/README.md).
[[nodiscard]] nlohmann::json columns_json(
    std::span<const HistoryColumn> columns = history_columns());

}  // namespace hedgerow::storage
