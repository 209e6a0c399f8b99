// A run as one HTML file that needs nothing else: the page with its scripts, style and what it
// shows inside.
#pragma once

#include <string>

#include "coordinator/web/snapshot.hpp"

namespace hedgerow::coordinator {

[[nodiscard]] std::string report_html(const Snapshot& snapshot);

}  // namespace hedgerow::coordinator
