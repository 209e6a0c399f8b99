// A run's history as text: pure, ASCII. An error is one character on a log scale, dark for large:
// '@' is 1 and more (of the mean square of the teacher's output), '.' is 0.001 and less.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cli/terminal/format.hpp"
#include "storage/history/history.hpp"

namespace hedgerow::coordinator::cli {

// '.' to '@'; ' ' for what is no number.
[[nodiscard]] char heat_of(double relative_mse);

// The index of a column; npos: the series has none of that name.
[[nodiscard]] std::size_t column_of(const storage::HistorySeries& series, std::string_view name);

// By layer from `first` on, as measured last and not before `since` (UTC, seconds); NaN: it was
// not. Empty: none of them was.
[[nodiscard]] std::vector<double> last_mse(const storage::History& history,
                                           int first,
                                           int count,
                                           double since);

// Relative MSE from the first validation to the last, in at most `width` characters; empty: there
// is none.
[[nodiscard]] std::string sparkline(const storage::History& history, int layer, int width);
// Layers `first` and on, one character each, by their last validation.
[[nodiscard]] std::string heat_line(const storage::History& history, int first, int count);

// Each layer with its errors and its sparkline, a row a layer.
[[nodiscard]] std::vector<std::string> metrics_lines(const storage::History& history, int width);
// The validations of one block's layers, a row each.
[[nodiscard]] std::vector<std::string> metrics_lines(const storage::History& history,
                                                     int first_layer,
                                                     int num_layers,
                                                     int width);

// What stands between two bars, if it is nothing but such characters, gets a background: for a
// terminal with 256 colours.
[[nodiscard]] std::string coloured_heat(const std::string& line);

}  // namespace hedgerow::coordinator::cli
