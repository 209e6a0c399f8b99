#include "coordinator/cli/bench/bench_report.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace hedgerow::coordinator::cli {
namespace {

using nlohmann::json;

enum class FasterAt { kFromLengthOn, kEveryLength, kNoLength, kUnknown };

// (length, ratio) of the rows that had an opponent.
std::vector<std::pair<double, double>> ratios_of(const KernelLine& line) {
  std::vector<std::pair<double, double>> ratios;
  for (const KernelRow& row : line.rows) {
    if (std::isfinite(row.ratio) && row.ratio > 0)
      ratios.emplace_back(static_cast<double>(row.length), row.ratio);
  }
  return ratios;
}

FasterAt faster_at(const KernelLine& line) {
  const auto ratios = ratios_of(line);
  if (ratios.empty()) return FasterAt::kUnknown;
  if (ratios.back().second >= 1) return FasterAt::kNoLength;
  return crossover_length(line) ? FasterAt::kFromLengthOn : FasterAt::kEveryLength;
}

bool same_line(const KernelRow& a, const KernelRow& b) {
  return a.direction == b.direction && a.heads == b.heads && a.layout == b.layout &&
         a.map == b.map && a.dtype == b.dtype && a.features == b.features;
}

std::string dtype_of(const KernelRow& row) { return row.dtype; }
std::string heads_of(const KernelRow& row) { return row.heads + " heads"; }
// Maps without a projection have one F each, which tells nothing apart.
std::string features_of(const KernelRow& row) {
  return row.map + " F = " + std::to_string(row.features);
}

// Whether rows of one map differ in their number of features.
bool sweeps_features(const std::vector<KernelRow>& rows) {
  std::set<std::string> maps, both;
  for (const KernelRow& row : rows) {
    maps.insert(row.map);
    both.insert(features_of(row));
  }
  return both.size() > maps.size();
}

template <typename Field>
bool varies(const std::vector<KernelRow>& rows, Field field) {
  return std::any_of(rows.begin(), rows.end(), [&](const KernelRow& row) {
    return field(row) != field(rows.front());
  });
}

std::string percent(double share) {
  return std::isfinite(share) ? std::to_string(std::lround(100 * share)) + "%" : "-";
}

// The ceiling that the row is nearer to.
std::string of_peak(const KernelRow& row) {
  return row.share_of_flops >= row.share_of_bandwidth ? percent(row.share_of_flops) + " flop"
                                                      : percent(row.share_of_bandwidth) + " mem";
}

Table columns() {
  Table table;
  table.column("direction", 12, false, 9)
      .column("T", 13, true, 7)
      .column("heads", 3, false, 5)
      .column("layout", 10, false, 8)
      .column("map", 9, false, 16)
      .column("F", 4, true, 5)
      .column("dtype", 2, false, 5)
      .column("ms", 11, true, 9)
      .column("softmax ms", 7, true, 10)
      .column("ratio", 8, true, 7)
      .column("GB/s", 5, true, 7)
      .column("TFLOP/s", 5, true, 8)
      .column("of peak", 6, true, 9)
      .column("softmax by", 1, false, 28);
  return table;
}

}  // namespace

KernelRow kernel_row(const json& measured) {
  const auto word = [](const json& object, const char* key) {
    return one_line(object.at(key).get<std::string>());
  };
  const json softmax = measured.at("softmax").is_object() ? measured["softmax"] : json::object();
  KernelRow row;
  row.direction = word(measured, "direction");
  row.heads = word(measured, "heads");
  row.layout = word(measured, "layout");
  row.map = word(measured, "map");
  row.dtype = word(measured, "dtype");
  row.softmax = softmax.contains("name") ? word(softmax, "name") : "";
  row.length = measured.at("length").get<std::int64_t>();
  row.features = measured.at("features").get<int>();
  row.ms = number_or_nan(measured, "ms");
  row.softmax_ms = number_or_nan(softmax, "ms");
  row.ratio = number_or_nan(measured, "ratio");
  row.us_per_token = number_or_nan(measured, "us_per_token");
  row.softmax_us_per_token = number_or_nan(softmax, "us_per_token");
  row.gb_per_s = number_or_nan(measured, "gb_per_s");
  row.tflop_per_s = number_or_nan(measured, "tflop_per_s");
  row.share_of_flops = number_or_nan(measured, "share_of_flops");
  row.share_of_bandwidth = number_or_nan(measured, "share_of_bandwidth");
  return row;
}

std::vector<KernelLine> kernel_lines(const std::vector<KernelRow>& rows) {
  const bool has_dtypes = varies(rows, dtype_of), has_heads = varies(rows, heads_of);
  const bool has_features = sweeps_features(rows);
  std::vector<KernelLine> lines;
  for (const KernelRow& row : rows) {
    const auto found = std::find_if(lines.begin(), lines.end(), [&](const KernelLine& line) {
      return same_line(line.rows.front(), row);
    });
    if (found != lines.end()) {
      found->rows.push_back(row);
      continue;
    }
    const std::string name = row.layout + " " + (has_features ? features_of(row) : row.map) +
                             (has_dtypes ? " " + row.dtype : "") +
                             (has_heads ? " " + heads_of(row) : "");
    lines.push_back({name, {row}});
  }
  for (KernelLine& line : lines) {
    std::stable_sort(line.rows.begin(), line.rows.end(), [](const auto& a, const auto& b) {
      return a.length < b.length;
    });
  }
  return lines;
}

std::optional<double> crossover_length(const KernelLine& line) {
  const auto ratios = ratios_of(line);
  for (std::size_t i = ratios.size(); i-- > 1;) {
    const auto& [right_length, right] = ratios[i];
    const auto& [left_length, left] = ratios[i - 1];
    if (right >= 1) return std::nullopt;
    if (left < 1) continue;
    const double part = std::log(left) / (std::log(left) - std::log(right));
    return left_length * std::pow(right_length / left_length, part);
  }
  return std::nullopt;
}

std::string crossover_text(const KernelLine& line) {
  const std::string head = line.rows.front().direction + ", " + line.name + ": ";
  switch (faster_at(line)) {
    case FasterAt::kFromLengthOn:
      return head + "faster than softmax from T = " +
             std::to_string(std::llround(*crossover_length(line))) + " on";
    case FasterAt::kEveryLength:
      return head + "crossover not seen, faster than softmax at all lengths measured";
    case FasterAt::kNoLength:
      return head + "crossover not seen, slower than softmax at the greatest length measured";
    case FasterAt::kUnknown:
      break;
  }
  return head + "no softmax to compare with";
}

json crossover_json(const KernelLine& line) {
  const KernelRow& row = line.rows.front();
  const std::optional<double> length = crossover_length(line);
  json object = {{"direction", row.direction},
                 {"heads", row.heads},
                 {"layout", row.layout},
                 {"map", row.map},
                 {"dtype", row.dtype},
                 {"features", row.features},
                 {"length", nullptr}};
  if (length) object["length"] = *length;
  switch (faster_at(line)) {
    case FasterAt::kFromLengthOn:
      object["faster_at"] = "from_length_on";
      break;
    case FasterAt::kEveryLength:
      object["faster_at"] = "every_length";
      break;
    case FasterAt::kNoLength:
      object["faster_at"] = "no_length";
      break;
    case FasterAt::kUnknown:
      object["faster_at"] = "unknown";
      break;
  }
  return object;
}

std::string KernelTable::title(int width) { return columns().render(width)[0]; }

std::string KernelTable::line(const KernelRow& row, int width) {
  Table table = columns();
  table.row({row.direction,
             std::to_string(row.length),
             row.heads,
             row.layout,
             row.map,
             std::to_string(row.features),
             row.dtype,
             number_text(row.ms),
             number_text(row.softmax_ms),
             number_text(row.ratio),
             number_text(row.gb_per_s),
             number_text(row.tflop_per_s),
             of_peak(row),
             row.softmax.empty() ? "none" : row.softmax});
  return table.render(width)[1];
}

}  // namespace hedgerow::coordinator::cli
