#include "coordinator/cli/completion.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"

namespace hedgerow::coordinator::cli {

RunCommand declare_completion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  one_of(app.add_option("shell", *shell, "the shell to complete for"), {"bash", "zsh", "fish"})
      ->required();
  return [shell, &app](Terminal& terminal) {
    const CLI::App& root = *app.get_parent();
    const std::string script = *shell == "bash"  ? bash_completion(root)
                               : *shell == "zsh" ? zsh_completion(root)
                                                 : fish_completion(root);
    terminal.print(std::string_view(script).substr(0, script.size() - 1));
    terminal.print_json({{"shell", *shell}, {"script", script}});
    return storage::ExitCode::kOk;
  };
}

}  // namespace hedgerow::coordinator::cli
