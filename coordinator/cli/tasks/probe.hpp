// `hedgerow probe`: figures of attention by layer and head, measured by hedgerow-worker
// (worker/probe). Beside commands/ because that folder is full.
#pragma once

#include "coordinator/cli/command.hpp"

namespace hedgerow::coordinator::cli {

RunCommand declare_probe(CLI::App& app);

}  // namespace hedgerow::coordinator::cli
