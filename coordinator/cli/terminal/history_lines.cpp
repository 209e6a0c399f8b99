#include "coordinator/cli/terminal/history_lines.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "storage/history/columns.hpp"

namespace hedgerow::coordinator::cli {
namespace {

constexpr std::string_view kRamp = ".:-=+*#%@";
constexpr double kLeastError = 1e-3;
constexpr int kSparkline = 20;  // columns, where there is room
// Viridis in nine steps, of the terminal's 256 colours: told apart also by those who see few.
constexpr std::array<int, 9> kColours = {53, 60, 61, 31, 37, 35, 71, 148, 226};

const storage::HistorySeries* series_of(const storage::History& history, int layer) {
  const auto found = history.series.find("layer/" + std::to_string(layer));
  return found == history.series.end() || found->second.rows.empty() ? nullptr : &found->second;
}

double value_of(const storage::HistorySeries& series,
                const storage::HistoryRow& row,
                std::string_view column) {
  const std::size_t index = column_of(series, column);
  return index < row.values.size() ? row.values[index] : std::numeric_limits<double>::quiet_NaN();
}

std::vector<int> layers_of(const storage::History& history) {
  std::vector<int> layers;
  for (const auto& [name, series] : history.series) {
    const storage::SeriesKey key = storage::series_key(name);
    if (key.kind == "layer" && !series.rows.empty())
      layers.push_back(std::atoi(key.labels.front().second.c_str()));
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

Table table_of_values() {
  Table table;
  table.column("layer", 9, true).column("step", 8, true);
  for (const storage::HistoryColumn& column : storage::columns_of_tables("layer"))
    table.column(std::string(column.short_label()), column.importance, true);
  return table;
}

std::vector<std::string> cells_of(int layer,
                                  const storage::HistorySeries& series,
                                  const storage::HistoryRow& row) {
  std::vector<std::string> cells{std::to_string(layer), std::to_string(row.step)};
  for (const storage::HistoryColumn& column : storage::columns_of_tables("layer"))
    cells.push_back(number_text(value_of(series, row, column.name), 3));
  return cells;
}

}  // namespace

std::size_t column_of(const storage::HistorySeries& series, std::string_view name) {
  const auto found = std::find(series.columns.begin(), series.columns.end(), name);
  return found == series.columns.end() ? std::string::npos
                                       : static_cast<std::size_t>(found - series.columns.begin());
}

char heat_of(double relative_mse) {
  if (std::isnan(relative_mse)) return ' ';
  const double error = std::clamp(relative_mse, kLeastError, 1.0);
  const double share = 1.0 - std::log10(error) / std::log10(kLeastError);
  return kRamp[static_cast<std::size_t>(
      std::lround(share * static_cast<double>(kRamp.size() - 1)))];
}

std::vector<double> last_mse(const storage::History& history, int first, int count, double since) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> errors(static_cast<std::size_t>(std::max(0, count)), kNone);
  bool is_any = false;
  for (int i = 0; i < count; ++i) {
    const storage::HistorySeries* series = series_of(history, first + i);
    if (series == nullptr || series->rows.back().time < since) continue;
    errors[static_cast<std::size_t>(i)] = value_of(*series, series->rows.back(), "mse");
    is_any = true;
  }
  return is_any ? errors : std::vector<double>{};
}

std::string sparkline(const storage::History& history, int layer, int width) {
  const storage::HistorySeries* series = series_of(history, layer);
  if (series == nullptr || width < 1) return "";
  const std::size_t count = series->rows.size();
  const std::size_t shown = std::min(count, static_cast<std::size_t>(width));
  std::string line;
  for (std::size_t i = 0; i < shown; ++i) {
    const std::size_t row = shown == 1 ? count - 1 : i * (count - 1) / (shown - 1);
    line += heat_of(value_of(*series, series->rows[row], "relative_mse"));
  }
  return line;
}

std::string heat_line(const storage::History& history, int first, int count) {
  std::string line;
  for (int layer = first; layer < first + count; ++layer) {
    const storage::HistorySeries* series = series_of(history, layer);
    line +=
        series == nullptr ? ' ' : heat_of(value_of(*series, series->rows.back(), "relative_mse"));
  }
  return line;
}

std::vector<std::string> metrics_lines(const storage::History& history, int width) {
  Table table = table_of_values();
  const std::vector<int> layers = layers_of(history);
  for (const int layer : layers) {
    const storage::HistorySeries& series = *series_of(history, layer);
    table.row(cells_of(layer, series, series.rows.back()));
  }
  std::vector<std::string> lines = table.render(width);
  const auto widest = std::max_element(
      lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  const std::size_t begin = widest->size() + 2;
  const int room = std::min(kSparkline, width - static_cast<int>(begin) - 2);
  if (room < 4) return lines;
  lines.front().resize(begin, ' ');
  lines.front() += "history";
  for (std::size_t i = 0; i < layers.size(); ++i) {
    lines[i + 1].resize(begin, ' ');
    lines[i + 1] += "|" + sparkline(history, layers[i], room) + "|";
  }
  return lines;
}

std::vector<std::string> metrics_lines(const storage::History& history,
                                       int first_layer,
                                       int num_layers,
                                       int width) {
  Table table = table_of_values();
  for (int layer = first_layer; layer < first_layer + num_layers; ++layer) {
    const storage::HistorySeries* series = series_of(history, layer);
    if (series == nullptr) continue;
    for (const storage::HistoryRow& row : series->rows) table.row(cells_of(layer, *series, row));
  }
  return table.empty() ? std::vector<std::string>{} : table.render(width);
}

std::string coloured_heat(const std::string& line) {
  std::string coloured;
  std::size_t at = 0;
  while (true) {
    const std::size_t begin = line.find('|', at);
    const std::size_t end = begin == std::string::npos ? begin : line.find('|', begin + 1);
    if (end == std::string::npos) return coloured + line.substr(at);
    const std::string cells = line.substr(begin + 1, end - begin - 1);
    const bool is_heat = !cells.empty() &&
                         cells.find_first_not_of(std::string(kRamp) + " ") == std::string::npos &&
                         cells.find_first_not_of(' ') != std::string::npos;
    coloured += line.substr(at, begin + 1 - at);
    if (!is_heat) {
      at = begin + 1;
      continue;
    }
    for (const char cell : cells) {
      const std::size_t step = kRamp.find(cell);
      if (step == std::string_view::npos) {
        coloured += "\x1b[0m ";
        continue;
      }
      const int ink = step < 5 ? 231 : 16;  // white on dark, black on light
      coloured += "\x1b[38;5;" + std::to_string(ink) + ";48;5;" + std::to_string(kColours[step]) +
                  "m" + cell;
    }
    coloured += "\x1b[0m|";
    at = end + 1;
  }
}

}  // namespace hedgerow::coordinator::cli
