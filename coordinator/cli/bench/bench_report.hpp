// What `bench kernels` has measured, as the command shows it: rows from hedgerow-worker's JSON
// lines, the lines of a plot that they form, and the length from which linear attention is faster.
// Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/terminal/format.hpp"

namespace hedgerow::coordinator::cli {

// One event "measured" of worker/bench/README.md; NaN and "" where there was no opponent.
struct KernelRow {
  std::string direction, heads, layout, map, dtype, softmax;
  std::int64_t length = 0;
  int features = 0;
  double ms = 0, softmax_ms = 0, ratio = 0;
  double us_per_token = 0, softmax_us_per_token = 0;
  double gb_per_s = 0, tflop_per_s = 0, share_of_flops = 0, share_of_bandwidth = 0;
};

// Throws nlohmann's own exceptions for a line that is not one.
[[nodiscard]] KernelRow kernel_row(const nlohmann::json& measured);

// Rows that differ in their length alone, by growing length.
struct KernelLine {
  std::string name;  // "terraced hedgehog_softmax", and what else the report's lines differ in
  std::vector<KernelRow> rows;
};

// By first appearance; lines of one (direction, heads) lie together where their rows came so.
[[nodiscard]] std::vector<KernelLine> kernel_lines(const std::vector<KernelRow>& rows);

// Where ratio = ours / softmax falls through 1 for good: straight between two lengths of the sweep
// in the logarithms of both. Nothing where it is below 1 from the first length on, or not at the
// last; rows without an opponent do not count.
[[nodiscard]] std::optional<double> crossover_length(const KernelLine& line);

// "forward, terraced hedgehog_softmax: faster than softmax from T = 412 on", or "... crossover not
// seen, ..." and on which side it lies, as far as was measured.
[[nodiscard]] std::string crossover_text(const KernelLine& line);
// {"direction", "heads", "layout", "map", "dtype", "features", "length": number or null,
//  "faster_at": "from_length_on" | "every_length" | "no_length" | "unknown"}
[[nodiscard]] nlohmann::json crossover_json(const KernelLine& line);

// A table of which rows are printed one by one: columns keep their places.
class KernelTable {
 public:
  [[nodiscard]] static std::string title(int width);
  [[nodiscard]] static std::string line(const KernelRow& row, int width);
};

}  // namespace hedgerow::coordinator::cli
