// One command of `hedgerow`. A command's file (commands/<group>/<name>.cpp) declares its options on a CLI11
// app and returns what runs once they are parsed: validation, then the work. Adding a command = a
// file and a line in commands/all.cpp.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/cli/terminal/terminal.hpp"
#include "storage/base/error.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hedgerow::coordinator::cli {

using RunCommand = std::function<storage::ExitCode(Terminal&)>;

struct Command {
  const char* name;
  const char* summary;  // one line, for the list of commands
  RunCommand (*declare)(
      CLI::App& options);  // the options' values are owned by the returned function
};

[[nodiscard]] std::span<const Command> all_commands();  // in the order in which people meet them

// Options that several commands share, in the same words. The value's name drives the completion:
// DIR, FILE, or choices separated by "|"; one_of() sets the latter and refuses every other value.
CLI::Option* add_run(CLI::App& app, std::string& directory);
CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words);

// What --run means when it was not given: "." where the current directory is a run. Throws kUsage
// if it is none, naming what else the command takes in its place.
[[nodiscard]] std::string run_or_here(const std::string& directory,
                                      const std::string& otherwise = "");

// ", did you mean 'X'?" for the candidate that is near `word`, else nothing. `prefix`: what X is
// shown with, the "--" of options.
[[nodiscard]] std::string did_you_mean(const std::string& word,
                                       const std::vector<std::string>& candidates,
                                       const std::string& prefix = "");

// Throws kUsage(message) unless the condition holds.
void require(bool condition, const std::string& message);

}  // namespace hedgerow::coordinator::cli
