// Help as text: description, usage, options, and the exit codes at the end of every page, wrapped
// to the terminal.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace hedgerow::coordinator::cli {

[[nodiscard]] std::string help_text(const CLI::App& app, int width);

}  // namespace hedgerow::coordinator::cli
