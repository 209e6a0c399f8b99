// A student beside its control, which is its own window and sinks with nothing trained: what the
// evaluations and the transfer found (coordinator/README.md "Results"), as lines of text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "coordinator/status/status.hpp"

namespace hedgerow::coordinator::cli {

// The columns of an evaluation as a table; none: it has none, being an earlier build's.
[[nodiscard]] std::vector<std::string> column_lines(const nlohmann::json& evaluation, int width);

// The texts of an evaluation, one a row with the section's own split first: whether it is in
// domain, perplexities and the gap closed. None: it has no named texts.
[[nodiscard]] std::vector<std::string> text_lines(const nlohmann::json& evaluation, int width);
// A line for each text of a run's last evaluation.
[[nodiscard]] std::vector<std::string> text_lines(const RunStatus& status, int width);

// The window of an evaluation's column equal_window, which has the student's bytes; 0: it has none.
[[nodiscard]] int equal_window_of(const nlohmann::json& evaluation);

// "94.2%" of (control - student) / (control - teacher); "-" where the evaluation has none.
[[nodiscard]] std::string gap_text(const nlohmann::json& evaluation);

// One sentence if the student of an evaluation, or of a run's last one, does not beat its control,
// with the texts on which it does not where there are several; empty: it does, or that is not
// known.
[[nodiscard]] std::string control_verdict(const nlohmann::json& evaluation);
[[nodiscard]] std::string control_verdict(const RunStatus& status);

// The layers whose training ended behind their control: "layer 7: kept untrained: MSE 0.0051 is
// above its control's 0.0044". No line is wider than `width`.
[[nodiscard]] std::vector<std::string> untrained_lines(const RunStatus& status, int width);

}  // namespace hedgerow::coordinator::cli
