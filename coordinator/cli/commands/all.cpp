#include <array>

#include "coordinator/cli/commands/commands.hpp"

namespace hedgerow::coordinator::cli {

std::span<const Command> all_commands() {
  static constexpr std::array kCommands{
      Command{"init", "write a recipe for a model and a text", declare_init},
      Command{"tokenize", "turn a recipe's text into a tokens file", declare_tokenize},
      Command{"completion", "print the completion script of a shell", declare_completion},
  };
  return kCommands;
}

}  // namespace hedgerow::coordinator::cli
