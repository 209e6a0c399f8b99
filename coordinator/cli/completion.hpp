// Shell completion generated from CLI11's option tree (it has no generator of its own), so that it
// never lags behind the options. Values complete by the option's value name: DIR, FILE, or choices
// separated by "|".
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace hedgerow::coordinator::cli {

[[nodiscard]] std::string bash_completion(const CLI::App& root);
[[nodiscard]] std::string zsh_completion(const CLI::App& root);
[[nodiscard]] std::string fish_completion(const CLI::App& root);

}  // namespace hedgerow::coordinator::cli
