// Shell completion generated from CLI11's option tree (it has no generator of its own), so that it
// never lags behind the options. Values complete by the option's value name: DIR, FILE, or choices
// separated by "|".
#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"

namespace hedgerow::coordinator::cli {
namespace {

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// The words of one_of(), separated by spaces; empty where people choose the word themselves.
std::string choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (!takes_value(option) || type.find_first_of("abcdefghijklmnopqrstuvwxyz") != 0) return "";
  return CLI::detail::find_and_replace(type, "|", " ");
}

std::string quoted(const std::string& text) {
  return "'" + CLI::detail::find_and_replace(text, "'", "'\\''") + "'";
}

std::string bash_completion(const CLI::App& root) {
  std::string values, words;
  std::vector<const CLI::App*> apps = root.get_subcommands({});
  apps.insert(apps.begin(), &root);
  for (const CLI::App* app : apps) {
    const std::string command = app == &root ? "" : app->get_name();
    words += "    " + quoted(command) + ") words='";
    for (const CLI::App* sub : app->get_subcommands({})) words += sub->get_name() + " ";
    for (const CLI::Option* option : app->get_options()) {
      const std::string choices = choices_of(*option), type = option->get_type_name();
      if (!option->nonpositional()) words += choices + " ";
      const std::string generator = type == "DIR"    ? "-d"
                                    : type == "FILE" ? "-f"
                                                     : "-W " + quoted(choices);
      for (std::string name : CLI::detail::split(option->get_name(false, true), ',')) {
        if (!name.starts_with("-")) continue;
        words += name + " ";
        if (takes_value(*option))
          values += "    " + quoted(command + ":" + name) + ") COMPREPLY=($(compgen " + generator +
                    " -- \"$current\")); return ;;\n";
      }
    }
    words += "' ;;\n";
  }
  return "_hedgerow() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
         "  local command= word words=\n"
         "  for word in \"${COMP_WORDS[@]:1:$((COMP_CWORD-1))}\"; do\n"
         "    case $word in -*) ;; *) command=$word; break ;; esac\n"
         "  done\n"
         "  case $command:$previous in\n" +
         values +
         "  esac\n"
         "  case $command in\n" +
         words +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "}\n"
         "complete -o bashdefault -o default -F _hedgerow hedgerow\n";
}

std::string fish_completion(const CLI::App& root) {
  std::string out = "complete -c hedgerow -f\n";
  for (const CLI::App* command : root.get_subcommands({})) {
    out += "complete -c hedgerow -n __fish_use_subcommand -a " + command->get_name() + " -d " +
           quoted(command->get_description()) + "\n";
    for (const CLI::Option* option : command->get_options()) {
      const std::string choices = choices_of(*option), type = option->get_type_name();
      if (!option->nonpositional() && choices.empty() && type != "FILE" && type != "DIR") continue;
      out += "complete -c hedgerow -n '__fish_seen_subcommand_from " + command->get_name() + "'";
      for (const std::string& name : option->get_lnames()) out += " -l " + name;
      for (const std::string& name : option->get_snames()) out += " -s " + name;
      if (takes_value(*option)) {
        out += type == "FILE"  ? " -rF"
               : type == "DIR" ? " -xa '(__fish_complete_directories)'"
                               : (option->nonpositional() ? " -xa " : " -a ") + quoted(choices);
      }
      out += " -d " + quoted(option->get_description()) + "\n";
    }
  }
  return out;
}

}  // namespace

RunCommand declare_completion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  one_of(app.add_option("shell", *shell, "the shell to complete for"), {"bash", "zsh", "fish"})
      ->required();
  return [shell, &app](Terminal& terminal) {
    const CLI::App& root = *app.get_parent();
    std::string script = "# source <(hedgerow completion " + *shell + ")\n";
    if (*shell == "zsh") script += "autoload -U +X bashcompinit && bashcompinit\n";
    script += *shell == "fish" ? fish_completion(root) : bash_completion(root);
    terminal.print(std::string_view(script).substr(0, script.size() - 1));
    terminal.print_json({{"shell", *shell}, {"script", script}});
    return storage::ExitCode::kOk;
  };
}

}  // namespace hedgerow::coordinator::cli
