// The command line as a whole: parses, runs one command, turns whatever it throws into one message
// and an exit code. main() and the tests call it alike.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/terminal/console.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {

// `arguments` without the program's name. Never throws.
storage::ExitCode run(std::vector<std::string> arguments, Console& console);

}  // namespace hedgerow::coordinator::cli
