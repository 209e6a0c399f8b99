// `hedgerow lab`: a study of worker/laboratory by hedgerow-worker, its table and verdicts on the
// terminal, its JSON and picture in a folder. Beside commands/ because that folder is full.
#pragma once

#include "coordinator/cli/command.hpp"

namespace hedgerow::coordinator::cli {

RunCommand declare_lab(CLI::App& app);

}  // namespace hedgerow::coordinator::cli
