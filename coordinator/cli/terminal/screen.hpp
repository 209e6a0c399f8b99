// A run as `status`, `watch` and the end of `run` show it: the parts of view.hpp one below the
// other, in as many rows as the screen has. Pure, like those.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/status/status.hpp"
#include "storage/history/history.hpp"

namespace hedgerow::coordinator::cli {

// Head line, stages, blocks, layers, losses, workers, results, warnings. Where the rows do not
// suffice, blocks that only wait or are done go first, then other rows, each with a line that says
// how many are missing; the stages stay. The MSE of each layer is shown apart from the blocks,
// unless each block is one layer and all of them are there, or `draws_heat` shows its way there.
[[nodiscard]] std::vector<std::string> whole_view(const RunStatus& status,
                                                  int width,
                                                  std::size_t max_rows = kUnlimitedRows,
                                                  const storage::History* history = nullptr,
                                                  bool draws_heat = true);

}  // namespace hedgerow::coordinator::cli
