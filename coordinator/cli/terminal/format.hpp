// Numbers, bars and tables as the terminal shows them: pure functions of their arguments, ASCII
// only, never wider than asked. Sizes are decimal (1 GB = 10^9 bytes), as disks are sold and as
// `plan` counts them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/plan/bytes_text.hpp"

namespace hedgerow::coordinator::cli {

// The width of lines that no terminal shows, which are neither wrapped nor cut.
inline constexpr int kUnlimitedWidth = 1'000'000;
inline constexpr std::size_t kUnlimitedRows = 1'000'000;

[[nodiscard]] std::string counted(std::int64_t count,
                                  const std::string& what);  // "1 step", "2 steps"
[[nodiscard]] std::string duration_text(
    double seconds);  // "0.4s", "45s", "12m05s", "2h10m", "3d04h"
[[nodiscard]] std::string number_text(
    double value, int digits = 4);  // significant ones: "0.01234", "48.66"; "-" if not finite
// A member of a result; NaN if it is absent or null, which is how JSON carries what is not finite.
[[nodiscard]] double number_or_nan(const nlohmann::json& object, const char* key);
[[nodiscard]] std::string bar(double fraction, int width);  // "[####------]", width columns in all
[[nodiscard]] std::string fit(std::string text,
                              int width);  // cut to width columns, the cut marked with "~"
// The same, cut behind a whole word if there is one.
[[nodiscard]] std::string fit_words(const std::string& text, int width);
[[nodiscard]] std::string one_line(
    std::string_view text);  // control characters (escapes included) become spaces

// A part of a line, which is there as a whole or not at all.
struct Field {
  std::string separator, text;  // the separator stands before it, unless it is the first one
  int importance = 0;
};
// The fields in their order; where the width does not suffice, the least important go first.
[[nodiscard]] std::string join(std::vector<Field> fields, int width);

// Breaks at spaces so that no line is wider than `width`; lines after the first are indented.
[[nodiscard]] std::string wrap(std::string_view text, int width, int indent);

// A table whose least important columns go when the terminal is narrow.
class Table {
 public:
  // Columns with a larger `importance` stay longer. Numbers are right-aligned.
  Table& column(std::string title, int importance, bool is_number = false);
  void row(std::vector<std::string> cells);  // one cell a column
  [[nodiscard]] std::vector<std::string> render(
      int width) const;  // title line first; each line <= width
  [[nodiscard]] bool empty() const { return rows_.empty(); }

 private:
  struct Column {
    std::string title;
    int importance = 0;
    bool is_number = false;
  };
  [[nodiscard]] std::vector<std::size_t> visible_columns(const std::vector<std::size_t>& widths,
                                                         int width) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace hedgerow::coordinator::cli
