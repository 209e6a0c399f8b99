// What is wrong with a command line, in our words: what, what was expected, what was found, what
// was probably meant. CLI11 finds the error; its own wording and its order (a missing option before
// the mistyped one that should have been it) stay out of sight.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace hedgerow::coordinator::cli {

// `root` after the parse that threw `error`, `command` the subcommand that it had come to (or the
// root itself).
[[nodiscard]] std::string parse_error_text(const CLI::App& root,
                                           const CLI::App& command,
                                           const CLI::ParseError& error);

// ", did you mean 'X'?" for the candidate that is near `word`, else nothing.
[[nodiscard]] std::string did_you_mean(const std::string& word,
                                       const std::vector<std::string>& candidates);

}  // namespace hedgerow::coordinator::cli
