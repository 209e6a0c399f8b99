#include "coordinator/cli/completion.hpp"

#include <CLI/CLI.hpp>
#include <vector>

#include "coordinator/cli/command.hpp"

namespace hedgerow::coordinator::cli {
namespace {

enum class Value { kNone, kDirectory, kFile, kChoice, kOther };

struct OptionWords {
  std::vector<std::string> names;  // "-h", "--help"; empty for a positional
  std::string value_name, description;
  Value value = Value::kNone;
  std::string choices;  // separated by spaces
};

Value kind_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return Value::kNone;
  const std::string type = option.get_type_name();
  if (type == "DIR") return Value::kDirectory;
  if (type == "FILE") return Value::kFile;
  return lists_choices(type) ? Value::kChoice : Value::kOther;
}

std::vector<OptionWords> options_of(const CLI::App& app) {
  std::vector<OptionWords> all;
  for (const CLI::Option* option : app.get_options()) {
    OptionWords words;
    for (const std::string& name : option->get_snames()) words.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) words.names.push_back("--" + name);
    words.description = option->get_description();
    words.value = kind_of(*option);
    words.value_name = words.value == Value::kNone ? "" : option->get_type_name();
    if (words.value == Value::kChoice) {
      words.choices = words.value_name;
      for (char& c : words.choices) c = c == '|' ? ' ' : c;
    }
    all.push_back(std::move(words));
  }
  return all;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string single_quoted(const std::string& text) {
  return "'" + replaced(text, "'", "'\\''") + "'";
}

std::string join(const std::vector<std::string>& words, const std::string& separator) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : separator) + word;
  return joined;
}

// The words after `command`, and how the value after each of its options completes.
void add_bash_command(const CLI::App& app, std::string& values, std::string& words) {
  const std::string command = app.get_parent() == nullptr ? "''" : app.get_name();
  const std::string prefix = app.get_parent() == nullptr ? "" : app.get_name();
  std::string line;
  for (const CLI::App* sub : app.get_subcommands({})) line += " " + sub->get_name();
  for (const OptionWords& option : options_of(app)) {
    for (const std::string& name : option.names) line += " " + name;
    if (option.names.empty() && option.value == Value::kChoice) line += " " + option.choices;
    if (option.names.empty() || option.value == Value::kNone) continue;
    std::string generator = "-f";
    if (option.value == Value::kDirectory) generator = "-d";
    if (option.value == Value::kChoice) generator = "-W '" + option.choices + "'";
    if (option.value == Value::kOther) generator = "-W ''";
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(prefix + ":" + name);
    values += "    " + join(patterns, "|") + ") COMPREPLY=($(compgen " + generator +
              " -- \"$current\")); return ;;\n";
  }
  words += "    " + command + ") words='" + line.substr(line.empty() ? 0 : 1) + "' ;;\n";
}

std::string zsh_action(const OptionWords& option) {
  switch (option.value) {
    case Value::kNone:
      return "";
    case Value::kDirectory:
      return ":" + option.value_name + ":_files -/";
    case Value::kFile:
      return ":" + option.value_name + ":_files";
    case Value::kChoice:
      return ":value:(" + option.choices + ")";
    case Value::kOther:
      break;
  }
  return ":" + option.value_name + ": ";
}

// _arguments gives brackets, colons and backslashes a meaning.
std::string zsh_text(const std::string& text) {
  return replaced(
      replaced(replaced(replaced(text, "\\", "\\\\"), "[", "\\["), "]", "\\]"), ":", "\\:");
}

std::string zsh_arguments(const CLI::App& app) {
  std::string out = "_arguments -s";
  for (const OptionWords& option : options_of(app)) {
    const std::string action = zsh_action(option);
    if (option.names.empty()) {
      out += " \\\n        " + single_quoted("*" + (action.empty() ? ":argument: " : action));
    }
    for (const std::string& name : option.names) {
      out +=
          " \\\n        " + single_quoted(name + "[" + zsh_text(option.description) + "]" + action);
    }
  }
  return out;
}

}  // namespace

std::string bash_completion(const CLI::App& root) {
  std::string values, words;
  add_bash_command(root, values, words);
  for (const CLI::App* command : root.get_subcommands({}))
    add_bash_command(*command, values, words);
  return "# bash completion of hedgerow; install: hedgerow completion bash > "
         "~/.local/share/bash-completion/completions/hedgerow\n"
         "_hedgerow() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= "
         "word words=\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
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

std::string zsh_completion(const CLI::App& root) {
  std::string commands, cases;
  for (const CLI::App* command : root.get_subcommands({})) {
    commands += "    " +
                single_quoted(command->get_name() + ":" + zsh_text(command->get_description())) +
                "\n";
    cases += "    " + command->get_name() + ")\n      " + zsh_arguments(*command) + "\n      ;;\n";
  }
  return "#compdef hedgerow\n"
         "# zsh completion of hedgerow; install: hedgerow completion zsh > "
         "\"${fpath[1]}/_hedgerow\"\n"
         "_hedgerow() {\n"
         "  local -a commands=(\n" +
         commands +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe command commands\n"
         "    return\n"
         "  fi\n"
         "  shift words\n"
         "  (( CURRENT-- ))\n"
         "  case $words[1] in\n" +
         cases +
         "  esac\n"
         "}\n"
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _hedgerow \"$@\"; else compdef "
         "_hedgerow hedgerow; fi\n";
}

std::string fish_completion(const CLI::App& root) {
  std::string out =
      "# fish completion of hedgerow; install: hedgerow completion fish > "
      "~/.config/fish/completions/hedgerow.fish\n"
      "complete -c hedgerow -f\n";
  for (const CLI::App* command : root.get_subcommands({})) {
    const std::string condition = " -n '__fish_seen_subcommand_from " + command->get_name() + "'";
    out += "complete -c hedgerow -n __fish_use_subcommand -a " + command->get_name() + " -d " +
           single_quoted(command->get_description()) + "\n";
    for (const OptionWords& option : options_of(*command)) {
      std::string line = "complete -c hedgerow" + condition;
      for (const std::string& name : option.names) {
        line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (option.value == Value::kDirectory) line += " -xa '(__fish_complete_directories)'";
      if (option.value == Value::kFile) line += " -rF";
      if (option.value == Value::kChoice)
        line += (option.names.empty() ? " -a '" : " -xa '") + option.choices + "'";
      if (option.value == Value::kOther && !option.names.empty()) line += " -x";
      out += line + " -d " + single_quoted(option.description) + "\n";
    }
  }
  return out;
}

}  // namespace hedgerow::coordinator::cli
