// A run in Prometheus' text format, for its /metrics. Names, units and labels:
// coordinator/web/README.md.
#pragma once

#include <string>

#include "coordinator/status/status.hpp"
#include "storage/history/history.hpp"

namespace hedgerow::coordinator {

[[nodiscard]] std::string prometheus_text(const RunStatus& status, const storage::History& history);

}  // namespace hedgerow::coordinator
