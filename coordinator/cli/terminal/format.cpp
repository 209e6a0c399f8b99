#include "coordinator/cli/terminal/format.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

namespace hedgerow::coordinator::cli {
namespace {

template <typename... Values>
std::string print(const char* form, Values... values) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), form, values...);
  return buffer.data();
}

constexpr std::size_t kColumnGap = 2;

}  // namespace

std::string counted(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 9.95) return print("%.1fs", seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 60) return print("%llds", whole);
  if (whole < 3600) return print("%lldm%02llds", whole / 60, whole % 60);
  if (whole < 86400) return print("%lldh%02lldm", whole / 3600, whole / 60 % 60);
  return print("%lldd%02lldh", whole / 86400, whole / 3600 % 24);
}

std::string number_text(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  return print("%.*g", digits, value);
}

double number_or_nan(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>()
                                                     : std::numeric_limits<double>::quiet_NaN();
}

std::string bar(double fraction, int width) {
  const int inside = std::max(1, width - 2);
  const double clamped = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0.0;
  const auto filled = static_cast<std::size_t>(std::floor(clamped * inside + 1e-9));
  return "[" + std::string(filled, '#') +
         std::string(static_cast<std::size_t>(inside) - filled, '-') + "]";
}

std::string fit(std::string text, int width) {
  const auto limit = static_cast<std::size_t>(std::max(1, width));
  if (text.size() <= limit) return text;
  text.resize(limit - 1);
  return text + "~";
}

std::string fit_words(const std::string& text, int width) {
  const auto limit = static_cast<std::size_t>(std::max(1, width));
  const std::size_t end = text.size() <= limit ? std::string::npos : text.rfind(' ', limit - 1);
  if (end == std::string::npos || end == 0) return fit(text, width);
  return text.substr(0, text.find_last_not_of(" ,;:", end) + 1) + "~";
}

std::string join(std::vector<Field> fields, int width) {
  const auto joined = [&fields] {
    std::string line;
    for (const Field& field : fields) line += (line.empty() ? "" : field.separator) + field.text;
    return line;
  };
  while (fields.size() > 1 && joined().size() > static_cast<std::size_t>(std::max(1, width))) {
    fields.erase(std::min_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
      return a.importance < b.importance;
    }));
  }
  return fit(joined(), width);
}

std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

std::string wrap(std::string_view text, int width, int indent) {
  const auto limit = static_cast<std::size_t>(std::max(8, width));
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  std::string wrapped;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (column > 0 && column + 1 + word.size() > limit) {
      wrapped += "\n" + margin;
      column = margin.size();
    } else if (column > 0) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
  }
  return wrapped;
}

Table& Table::column(std::string title, int importance, bool is_number) {
  columns_.push_back({std::move(title), importance, is_number});
  return *this;
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = one_line(cell);
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::visible_columns(const std::vector<std::size_t>& widths,
                                                int width) const {
  std::vector<std::size_t> visible(columns_.size());
  for (std::size_t i = 0; i < visible.size(); ++i) visible[i] = i;
  const auto total = [&] {
    std::size_t sum = visible.empty() ? 0 : kColumnGap * (visible.size() - 1);
    for (const std::size_t i : visible) sum += widths[i];
    return sum;
  };
  while (visible.size() > 1 && total() > static_cast<std::size_t>(std::max(1, width))) {
    visible.erase(std::min_element(visible.begin(), visible.end(), [&](auto a, auto b) {
      return columns_[a].importance < columns_[b].importance;
    }));
  }
  return visible;
}

std::vector<std::string> Table::render(int width) const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t widest = columns_[i].title.size();
    for (const auto& cells : rows_) widest = std::max(widest, cells[i].size());
    widths.push_back(widest);
  }
  const std::vector<std::size_t> visible = visible_columns(widths, width);
  const auto line_of = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t n = 0; n < visible.size(); ++n) {
      const std::size_t i = visible[n];
      const std::string& cell = cell_of(i);
      const std::string padding(widths[i] - cell.size(), ' ');
      if (n > 0) line += std::string(kColumnGap, ' ');
      line += columns_[i].is_number ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return fit(line, width);
  };
  std::vector<std::string> lines;
  lines.push_back(line_of([&](std::size_t i) -> const std::string& { return columns_[i].title; }));
  for (const auto& cells : rows_) {
    lines.push_back(line_of([&](std::size_t i) -> const std::string& { return cells[i]; }));
  }
  return lines;
}

}  // namespace hedgerow::coordinator::cli
