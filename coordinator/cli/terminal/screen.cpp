#include "coordinator/cli/terminal/screen.hpp"

#include <algorithm>
#include <array>

#include "coordinator/cli/terminal/variants_table.hpp"
#include "coordinator/cli/terminal/view.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using Lines = std::vector<std::string>;

// While there are fewer rows than all parts want, these have no more.
constexpr std::size_t kRowsOfWorkers = 5, kRowsOfWarnings = 3;

struct Parts {
  Lines head, blocks, layers, losses, workers, results, warnings;
};

std::size_t rows_of(const Lines& part) { return part.empty() ? 0 : part.size() + 1; }

std::size_t rows_of(const Parts& parts) {
  return parts.head.size() + rows_of(parts.blocks) + rows_of(parts.layers) + rows_of(parts.losses) +
         rows_of(parts.workers) + rows_of(parts.results) + rows_of(parts.warnings);
}

Lines joined(const Parts& parts) {
  Lines lines = parts.head;
  for (const Lines* part : {&parts.blocks,
                            &parts.layers,
                            &parts.losses,
                            &parts.workers,
                            &parts.results,
                            &parts.warnings}) {
    if (part->empty()) continue;
    lines.emplace_back();
    lines.insert(lines.end(), part->begin(), part->end());
  }
  return lines;
}

void cut(Lines& part, std::size_t max_rows) {
  if (part.size() <= max_rows) return;
  const std::size_t shown = max_rows == 0 ? 0 : max_rows - 1;
  const std::string more = "... and " + std::to_string(part.size() - shown) + " more";
  part.resize(shown);
  if (max_rows > 0) part.push_back(more);
}

// A title alone says nothing.
void cut_table(Lines& part, std::size_t max_rows) { cut(part, max_rows < 3 ? 0 : max_rows); }

// The first of them is served first.
void share_out(Parts& parts,
               const RunStatus& status,
               int width,
               std::size_t max_rows,
               const storage::History* history,
               bool draws_heat) {
  std::size_t left = max_rows - std::min(max_rows, parts.head.size());
  const auto room = [&] { return left == 0 ? 0 : left - 1; };
  const auto take = [&](const Lines& part) { left -= std::min(left, rows_of(part)); };
  cut_table(parts.layers, room());
  take(parts.layers);
  cut_table(parts.workers, std::min(room(), kRowsOfWorkers));
  take(parts.workers);
  cut(parts.warnings, std::min(room(), kRowsOfWarnings));
  take(parts.warnings);
  cut_table(parts.results, room());
  take(parts.results);
  cut(parts.losses, room());
  take(parts.losses);
  parts.blocks = room() < 3 ? Lines{} : block_lines(status, width, room(), history, draws_heat);
}

}  // namespace

std::vector<std::string> whole_view(const RunStatus& status,
                                    int width,
                                    std::size_t max_rows,
                                    const storage::History* history,
                                    bool draws_heat) {
  Parts parts{.head = {head_line(status, width)},
              .blocks = block_lines(status, width, kUnlimitedRows, history, draws_heat),
              .layers = {},
              .losses = loss_lines(status, width),
              .workers = worker_lines(status, width),
              .results = result_lines(status, width),
              .warnings = warning_lines(status, width)};
  for (std::string& line : variant_lines(variants_of(status), width))
    parts.results.push_back(std::move(line));
  if (const Lines stages = stage_lines(status, width); !stages.empty()) {
    parts.head.emplace_back();
    parts.head.insert(parts.head.end(), stages.begin(), stages.end());
  }
  const bool tells_layers =
      status.num_layers == status.num_blocks && !(draws_heat && history != nullptr);
  if (tells_layers && rows_of(parts) <= max_rows) return joined(parts);
  parts.layers = layer_lines(status, width, history, draws_heat);
  if (rows_of(parts) > max_rows) share_out(parts, status, width, max_rows, history, draws_heat);
  return joined(parts);
}

}  // namespace hedgerow::coordinator::cli
