// A run in Prometheus' text format, for its /metrics. Names, units and labels:
// coordinator/web/README.md.
#pragma once

#include <span>
#include <string>

#include "coordinator/status/status.hpp"
#include "storage/history/columns.hpp"
#include "storage/history/history.hpp"

namespace hedgerow::coordinator {

[[nodiscard]] std::string prometheus_text(
    const RunStatus& status,
    const storage::History& history,
    std::span<const storage::HistoryColumn> columns = storage::history_columns());

}  // namespace hedgerow::coordinator
