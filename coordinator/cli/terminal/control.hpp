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

// "94.2%" of (control - student) / (control - teacher); "-" where the evaluation has none.
[[nodiscard]] std::string gap_text(const nlohmann::json& evaluation);

// One sentence if the student of an evaluation, or of a run's last one, does not beat its control;
// empty: it does, or that is not known.
[[nodiscard]] std::string control_verdict(const nlohmann::json& evaluation);
[[nodiscard]] std::string control_verdict(const RunStatus& status);

// The layers whose training ended behind their control: "layer 7: kept untrained: MSE 0.0051 is
// above its control's 0.0044". No line is wider than `width`.
[[nodiscard]] std::vector<std::string> untrained_lines(const RunStatus& status, int width);

}  // namespace hedgerow::coordinator::cli
