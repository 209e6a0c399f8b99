#include "coordinator/cli/help.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <utility>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

constexpr std::array<std::pair<ExitCode, const char*>, 6> kExitCodes{{
    {ExitCode::kOk, "ok"},
    {ExitCode::kFailed, "failed"},
    {ExitCode::kUsage, "usage: something to mend in the command, the recipe or what they name"},
    {ExitCode::kPartial, "partial: some blocks are quarantined, the rest is done"},
    {ExitCode::kInterrupted, "interrupted; the same command goes on"},
    {ExitCode::kEnvironment, "environment: disk full, port taken, a program or node missing"},
}};

constexpr int kWidestName = 26;

using Entry = std::pair<std::string, std::string>;  // name, what it is

// Two columns where the width allows it, the description under the name where it does not.
std::string two_columns(const std::vector<Entry>& entries, int width) {
  std::size_t widest = 0;
  for (const auto& [name, text] : entries) widest = std::max(widest, name.size());
  const int column = width < 60 ? 6 : std::min(static_cast<int>(widest), kWidestName) + 4;
  std::string out;
  for (const auto& [name, text] : entries) {
    std::string line = "  " + name;
    const bool fits = static_cast<int>(line.size()) + 2 <= column;
    if (fits) {
      line.resize(static_cast<std::size_t>(column), ' ');
    } else {
      line += "\n" + std::string(static_cast<std::size_t>(column), ' ');
    }
    const std::string margin(static_cast<std::size_t>(column), ' ');
    std::string body = wrap(text, width - column, 0);
    for (std::size_t at = body.find('\n'); at != std::string::npos; at = body.find('\n', at + 1)) {
      body.insert(at + 1, margin);
    }
    out += line + body + "\n";
  }
  return out;
}

std::string type_of(const CLI::Option& option) {
  return option.get_items_expected_max() == 0 ? "" : option.get_type_name();
}

std::string value_name(const CLI::Option& option) {
  const std::string type = type_of(option);
  if (type.empty()) return "";
  return lists_choices(type) ? " WORD" : " " + type;
}

Entry entry_of(const CLI::Option& option) {
  const bool is_positional = !option.nonpositional();
  std::string name = is_positional ? option.get_name(true, false) : option.get_name(false, true);
  for (std::size_t at = name.find(','); at != std::string::npos; at = name.find(',', at + 2)) {
    name.insert(at + 1, " ");
  }
  if (!is_positional) name += value_name(option);
  std::string text = option.get_description();
  std::string choices = type_of(option);
  if (lists_choices(choices)) {
    for (std::size_t at = choices.find('|'); at != std::string::npos; at = choices.find('|')) {
      choices.replace(at, 1, ", ");
    }
    text += ": " + choices;
  }
  if (option.get_required()) text += " (required)";
  if (!option.get_default_str().empty()) text += " (default: " + option.get_default_str() + ")";
  return {name, text};
}

std::string usage(const CLI::App& app) {
  std::string line = "usage: hedgerow";
  if (app.get_parent() == nullptr) return line + " COMMAND [options]";
  line += " " + app.get_name() + " [options]";
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) {
      if (option->get_required()) line += " " + option->get_name() + value_name(*option);
      if (!option->get_positional()) continue;  // else it may be given without its name too
    }
    const std::string type = type_of(*option);
    std::string name = lists_choices(type) ? type : option->get_name(true, false);
    if (option->get_expected_max() > 1) name += "...";
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  return line;
}

}  // namespace

std::string help_text(const CLI::App& app, int width) {
  std::string out =
      wrap(app.get_description(), width, 0) + "\n\n" + wrap(usage(app), width, 7) + "\n";
  std::vector<Entry> commands, arguments, options, codes;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands.emplace_back(command->get_name(), command->get_description());
  }
  for (const CLI::Option* option : app.get_options()) {
    (option->nonpositional() ? options : arguments).push_back(entry_of(*option));
  }
  for (const auto& [code, text] : kExitCodes) {
    codes.emplace_back(std::to_string(static_cast<int>(code)), text);
  }
  if (!commands.empty()) out += "\ncommands:\n" + two_columns(commands, width);
  if (!arguments.empty()) out += "\narguments:\n" + two_columns(arguments, width);
  if (!options.empty()) out += "\noptions:\n" + two_columns(options, width);
  return out + "\nexit codes:\n" + two_columns(codes, width);
}

}  // namespace hedgerow::coordinator::cli
