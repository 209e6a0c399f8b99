#include "coordinator/cli/terminal/variants_table.hpp"

#include <algorithm>

#include "coordinator/cli/terminal/format.hpp"

namespace hedgerow::coordinator::cli {
namespace {

std::string spread_text(const Spread& spread, double scale = 1.0) {
  if (spread.count == 0) return "-";
  std::string text = number_text(scale * spread.median, 3);
  if (spread.count > 1)
    text += " (" + number_text(scale * spread.least, 3) + " to " +
            number_text(scale * spread.most, 3) + ")";
  return text;
}

}  // namespace

std::vector<std::string> variant_lines(const std::vector<VariantFigures>& variants,
                                       int width,
                                       const VariantColumn& more) {
  if (variants.empty()) return {};
  constexpr double kMilliseconds = 1e3;
  Table table;
  table.column("variant", 9).column("seeds", 3, true).column("relative MSE", 8, true);
  const bool says_untrained =
      std::ranges::any_of(variants, [](const auto& of) { return of.kept_untrained > 0; });
  if (says_untrained) table.column("kept untrained", 8, true);
  table.column("KL", 8, true)
      .column("KL: window of its bytes", 7, true)
      .column("KL: control", 4, true);
  const auto most = std::ranges::max_element(
      variants, {}, [](const VariantFigures& figures) { return figures.gap_closed.size(); });
  const bool has_texts = most->gap_closed.size() > 1;  // else that KL is the mean's
  for (const auto& [text, spread] : most->gap_closed) {
    table.column("gap closed: " + text, text == storage::kValidation ? 6 : 5, true);
    if (has_texts) table.column("KL: " + text, 2, true);
  }
  table.column("state", 5, true).column("ms a step", 3, true);
  if (!more.cells.empty()) table.column(more.title, 5, true);
  for (const VariantFigures& figures : variants) {
    std::vector<std::string> cells{(figures.is_on_front ? "* " : "  ") + figures.name,
                                   std::to_string(figures.seeds),
                                   spread_text(figures.relative_mse)};
    if (says_untrained)
      cells.push_back(std::to_string(figures.kept_untrained) + " of " +
                      std::to_string(figures.layers));
    cells.push_back(spread_text(figures.mean_kl));
    for (const auto& kl : {figures.window_kl, figures.control_kl})
      cells.push_back(kl ? number_text(*kl, 3) : "-");
    for (std::size_t i = 0; i < most->gap_closed.size(); ++i) {
      const bool is_known = i < figures.gap_closed.size();
      cells.push_back(is_known ? spread_text(figures.gap_closed[i].second) : "-");
      if (has_texts) cells.push_back(is_known ? spread_text(figures.kl[i].second) : "-");
    }
    cells.push_back(figures.state_bytes > 0
                        ? bytes_text(static_cast<std::uint64_t>(figures.state_bytes))
                        : "-");
    cells.push_back(spread_text(figures.seconds_per_step, kMilliseconds));
    if (!more.cells.empty()) {
      const auto cell = more.cells.find(figures.name);
      cells.push_back(cell != more.cells.end() ? cell->second : "-");
    }
    table.row(std::move(cells));
  }
  return table.render(width);
}

}  // namespace hedgerow::coordinator::cli
