#include "storage/history/columns.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace hedgerow::storage {
namespace {

constexpr std::string_view kShares = "share of the attention mass";
constexpr std::string_view kErrors = "MSE of the attention output";

constexpr HistoryColumn kHistoryColumns[] = {
    {.series = "layer",
     .name = "mse",
     .label = "MSE",
     .help = "MSE of the attention output on the validation split, last measured.",
     .is_log = true,
     .prometheus = "hedgerow_layer_mse",
     .importance = 7,
     .is_on_heat_map = true,
     .chart = kErrors,
     .line = "student"},
    {.series = "layer",
     .name = "relative_mse",
     .label = "relative MSE",
     .brief = "relative",
     .help = "The same over the mean square of the teacher's output.",
     .is_log = true,
     .prometheus = "hedgerow_layer_relative_mse_ratio",
     .importance = 6,
     .is_on_heat_map = true},
    {.series = "layer",
     .name = "control_mse",
     .label = "control's MSE",
     .brief = "control",
     .help = "MSE of the window and sinks alone, untrained.",
     .is_log = true,
     .importance = 5,
     .chart = kErrors,
     .line = "control (untrained window and sinks)",
     .is_reference = true},
    {.series = "layer",
     .name = "window_share",
     .label = "window share",
     .brief = "window",
     .help = "Share of the attention weight that the window carries, but for the sinks.",
     .unit = "share",
     .chart = kShares},
    {.series = "layer",
     .name = "sink_share",
     .label = "sink share",
     .brief = "sinks",
     .help = "Share of the attention weight that the sinks carry.",
     .unit = "share",
     .importance = 2,
     .chart = kShares},
    {.series = "layer",
     .name = "linear_share",
     .label = "linear share",
     .brief = "linear",
     .help = "Share of the attention weight that the linear branch carries, 0 to 1.",
     .unit = "share",
     .prometheus = "hedgerow_layer_linear_share_ratio",
     .importance = 4,
     .is_on_heat_map = true,
     .chart = kShares},
    {.series = "layer",
     .name = "window_factor",
     .label = "window factor",
     .help = "Mean over heads of the window's factor."},
    {.series = "layer",
     .name = "gradient_norm",
     .label = "gradient norm",
     .brief = "gradient",
     .help = "Of the last step, before the clip.",
     .is_log = true,
     .importance = 1,
     .is_on_heat_map = true,
     .chart = "gradient norm",
     .line = "gradient norm",
     .color = 4},
    {.series = "layer",
     .name = "learning_rate",
     .label = "learning rate",
     .brief = "rate",
     .importance = 0,
     .chart = "learning rate",
     .line = "learning rate"},
    {.series = "layer",
     .name = "cross_entropy",
     .label = "cross-entropy",
     .help = "Of the student's attention weights to the teacher's; 0 without xent_factor.",
     .unit = "nats"},

    {.series = "finetune",
     .name = "loss",
     .label = "training loss",
     .help = "Its training loss, last step.",
     .prometheus = "hedgerow_finetune_loss",
     .importance = 3,
     .chart = "loss",
     .line = "training"},
    {.series = "finetune",
     .name = "gradient_norm",
     .label = "gradient norm",
     .is_log = true,
     .importance = 1,
     .chart = "gradient norm",
     .color = 4},
    {.series = "finetune", .name = "learning_rate", .label = "learning rate", .importance = 0},
    {.series = "finetune", .name = "tokens", .label = "tokens", .help = "Of the step."},
    {.series = "finetune", .name = "seconds", .label = "seconds", .help = "Of the step."},
    {.series = "finetune",
     .name = "update_norm/",
     .label = "norm of a step's update",
     .is_log = true,
     .index = "projection",
     .chart = "norm of a step's update"},
    {.series = "finetune",
     .name = "update_sum/",
     .label = "norms of all steps' updates, added up",
     .help = "Of a LoRA factor (q_proj/A) or of another trained part, over all layers.",
     .index = "factor",
     .chart = "norms of all updates, added up"},

    {.series = "finetune/validation",
     .name = "loss",
     .label = "validation loss",
     .importance = 3,
     .chart = "loss",
     .line = "validation"},
    {.series = "finetune/validation",
     .name = "kl",
     .label = "KL to the teacher",
     .unit = "nats",
     .importance = 2,
     .chart = "validation: KL to the teacher, nats a token",
     .color = 3},
    {.series = "finetune/validation",
     .name = "cross_entropy",
     .label = "cross-entropy",
     .unit = "nats",
     .importance = 2,
     .chart = "validation: cross-entropy",
     .color = 3},

    {.series = "run", .name = "workers", .label = "workers"},
    {.series = "run", .name = "running", .label = "tasks under way"},
    {.series = "run",
     .name = "disk_free_bytes",
     .label = "disk free",
     .help = "Free space where the run directory lies.",
     .unit = "bytes",
     .prometheus = "hedgerow_disk_free_bytes"},
    {.series = "run",
     .name = "tokens_per_second",
     .label = "tokens/s",
     .help = "Speed of all workers, last measured.",
     .unit = "tokens/s",
     .prometheus = "hedgerow_tokens_per_second",
     .is_of_running_run = true},
};

// Words of a series' name that a number or a name follows.
constexpr std::array<std::string_view, 3> kIndexed = {"trial", "layer", "head"};

}  // namespace

std::span<const HistoryColumn> history_columns() { return kHistoryColumns; }

SeriesKey series_key(std::string_view series) {
  SeriesKey key;
  const auto next = [&series] {
    const std::string_view word = series.substr(0, series.find('/'));
    series.remove_prefix(std::min(series.size(), word.size() + 1));
    return std::string(word);
  };
  while (!series.empty()) {
    std::string word = next();
    key.kind += (key.kind.empty() ? "" : "/") + word;
    if (std::find(kIndexed.begin(), kIndexed.end(), word) != kIndexed.end())
      key.labels.emplace_back(std::move(word), next());
  }
  return key;
}

const HistoryColumn* find_column(std::string_view kind,
                                 std::string_view name,
                                 std::span<const HistoryColumn> columns) {
  for (const HistoryColumn& column : columns) {
    const bool is_it = column.name.ends_with('/') ? name.starts_with(column.name)  //
                                                  : name == column.name;
    if (column.series == kind && is_it) return &column;
  }
  return nullptr;
}

std::vector<HistoryColumn> columns_of_tables(std::string_view kind) {
  std::vector<HistoryColumn> shown;
  for (const HistoryColumn& column : history_columns())
    if (column.series == kind && column.importance >= 0) shown.push_back(column);
  std::stable_sort(shown.begin(), shown.end(), [](const auto& a, const auto& b) {
    return a.importance > b.importance;
  });
  return shown;
}

void sort_columns(std::string_view kind, std::vector<std::string>& names) {
  const auto place = [kind](const std::string& name) {
    const HistoryColumn* const column = find_column(kind, name);
    return column == nullptr ? std::end(kHistoryColumns) : column;
  };
  std::stable_sort(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return place(a) < place(b);
  });
}

nlohmann::json columns_json(std::span<const HistoryColumn> columns) {
  nlohmann::json list = nlohmann::json::array();
  for (const HistoryColumn& column : columns) {
    list.push_back({{"series", column.series},
                    {"name", column.name},
                    {"label", column.label},
                    {"help", column.help},
                    {"unit", column.unit},
                    {"log", column.is_log},
                    {"importance", column.importance},
                    {"heat", column.is_on_heat_map},
                    {"chart", column.chart},
                    {"line", column.line.empty() ? column.short_label() : column.line},
                    {"dashed", column.is_reference},
                    {"color", column.color}});
  }
  return list;
}

}  // namespace hedgerow::storage
