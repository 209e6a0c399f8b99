#include "coordinator/cli/app.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/terminal.hpp"
#include "storage/base/build_info.hpp"
#include "storage/files/filesystem_error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

constexpr const char* kAbout =
    "Turns a pretrained softmax-attention language model into a linear-attention one, as a job "
    "that resumes.";

constexpr const char* kExitCodes =
    "exit codes:\n"
    "  0  ok\n"
    "  1  failed\n"
    "  2  usage: something to mend in the command, the recipe or what they name\n"
    "  3  partial: some blocks are quarantined, the rest is done\n"
    "  4  interrupted; the same command goes on\n"
    "  5  environment: disk full, port taken, a program or node missing";

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : all_commands()) names.emplace_back(command.name);
  names.emplace_back("help");
  return names;
}

// The tree with what the options write to.
struct Tree {
  CLI::App app{kAbout, "hedgerow"};
  TerminalOptions terminal;
  bool version = false;
  CLI::App* help = nullptr;  // no file of its own: its work is to print the others' options
  std::string help_about;
  std::vector<std::pair<CLI::App*, RunCommand>> commands;

  Tree() {
    add_common(app);
    // One: behind it "stop" is a prompt or an argument, not another command.
    app.require_subcommand(0, 1);
    app.add_flag("--version", version, "print the version and exit");
    for (const Command& command : all_commands()) {
      CLI::App* sub = app.add_subcommand(command.name, command.summary);
      RunCommand run = command.declare(*sub);
      add_common(*sub);
      commands.emplace_back(sub, std::move(run));
    }
    help = app.add_subcommand("help", "the help of a command");
    one_of(help->add_option("name", help_about, "a command; without one, the list of them"),
           command_names());
    add_common(*help);
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void add_common(CLI::App& target) {
    target.footer(kExitCodes);
    target.set_help_flag("-h,--help", "print this help and exit");
    target.add_flag("--json", terminal.json, "answer in JSON, one object a line");
    target.add_flag("-q,--quiet", terminal.quiet, "no progress, no talk; errors and answers stay");
    target.add_flag(
        "-v,--verbose", terminal.verbose, "say more; -vv: what child processes say too");
  }
};

void require_known_command(const std::vector<std::string>& arguments) {
  const auto word = std::find_if(
      arguments.begin(), arguments.end(), [](const auto& a) { return !a.starts_with("-"); });
  if (word == arguments.end()) return;
  const std::vector<std::string> names = command_names();
  if (std::find(names.begin(), names.end(), *word) != names.end()) return;
  throw Error(ErrorKind::kUsage,
              "'" + *word + "' is no command" + did_you_mean(*word, names) +
                  "; 'hedgerow --help' lists them all");
}

// What JSON can hold: records of a run, messages and --json quote what was said here.
void require_utf8(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    try {
      static_cast<void>(nlohmann::json(argument).dump());
    } catch (const nlohmann::json::type_error&) {
      throw Error(ErrorKind::kUsage,
                  "the argument " +
                      nlohmann::json(argument).dump(
                          -1, ' ', true, nlohmann::json::error_handler_t::replace) +
                      " is not UTF-8; convert it, or rename what it names");
    }
  }
}

const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : *chosen.front();
}

// A line of CLI11's help, which knows nothing of the terminal's width; its second column begins at
// `column`.
std::string wrapped(std::string line, std::size_t column, int width) {
  if (line.size() <= static_cast<std::size_t>(width)) return line;
  constexpr char kMask = '\x01';  // for spaces that stay
  std::size_t kept = line.find_first_not_of(' '), indent = kept + 2;
  if (line[column] != ' ' && line[column - 1] == ' ') {
    kept = indent = column;
  } else {
    line = CLI::detail::find_and_replace(line, "|", " | ");  // choices break between two,
    line = CLI::detail::find_and_replace(line, "=", " = ");  // and before what is taken unless told
  }
  std::replace(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(kept), ' ', kMask);
  line = wrap(line, width, static_cast<int>(indent));
  std::replace(line.begin(), line.end(), kMask, ' ');
  return line;
}

ExitCode print_help(const CLI::App& app, Terminal& terminal) {
  constexpr int kNarrow = 60;
  const std::size_t column = terminal.width() < kNarrow ? 6 : 30;
  CLI::Formatter formatter;
  formatter.column_width(column);
  const std::string name = app.get_parent() == nullptr ? "" : " " + app.get_name();
  std::istringstream help(formatter.make_help(&app, "hedgerow" + name, CLI::AppFormatMode::Normal));
  std::string text;
  for (std::string line; std::getline(help, line);)
    text += (text.empty() ? "" : "\n") + wrapped(line, column, terminal.width());
  terminal.print(text);
  terminal.print_json({{"help", text}});
  return ExitCode::kOk;
}

// CLI11's own words, but an option that is not there comes first: the one that CLI11 then misses is
// likely to be what was meant.
std::string parse_error_text(const CLI::App& root,
                             const CLI::App& command,
                             const CLI::ParseError& error) {
  const std::vector<std::string> surplus = root.remaining(/*recurse=*/true);
  const auto option = std::find_if(surplus.begin(), surplus.end(), [](const std::string& word) {
    return word.size() > 1 && word.starts_with("-") && word != "--";
  });
  std::string text = error.what();
  if (option != surplus.end()) {
    const std::string word = option->substr(0, option->find('='));
    std::vector<std::string> names;
    for (const CLI::Option* known : command.get_options()) {
      for (const std::string& name : known->get_lnames()) names.push_back(name);
    }
    text = command.get_name() + " has no option " + word;
    // Without dashes, which would make every option look like every other.
    const std::size_t begin = word.find_first_not_of('-');
    if (begin != std::string::npos && word.size() > begin + 1)
      text += did_you_mean(word.substr(begin), names, "--");
  }
  const std::string name = command.get_parent() == nullptr ? "" : command.get_name() + " ";
  return text + "; see 'hedgerow " + name + "--help'";
}

ExitCode parse_and_run(std::vector<std::string> arguments, Tree& tree, Terminal& terminal) {
  // Before parsing, so that errors of the parser itself obey --json.
  terminal.configure("hedgerow",
                     {.json = std::count(arguments.begin(), arguments.end(), "--json") > 0});
  require_utf8(arguments);
  require_known_command(arguments);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  bool wants_help = false;
  try {
    tree.app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    wants_help = true;
  } catch (const CLI::ParseError& error) {
    const CLI::App& app = innermost(tree.app);
    if (app.get_parent() != nullptr) terminal.configure(app.get_name(), terminal.options());
    throw Error(ErrorKind::kUsage, parse_error_text(tree.app, app, error));
  }
  const CLI::App& app = innermost(tree.app);
  terminal.configure(app.get_name(), tree.terminal);
  if (wants_help) return print_help(app, terminal);
  if (tree.version) {
    terminal.print("hedgerow " + storage::version() + " (" + storage::git_hash() + ")");
    terminal.print_json({{"version", storage::version()}, {"git_hash", storage::git_hash()}});
    return ExitCode::kOk;
  }
  if (&app == tree.help) {
    const CLI::App& about =
        tree.help_about.empty() ? tree.app : *tree.app.get_subcommand(tree.help_about);
    return print_help(about, terminal);
  }
  for (const auto& [command, run_command] : tree.commands) {
    if (command == &app) return run_command(terminal);
  }
  print_help(tree.app, terminal);
  return ExitCode::kUsage;
}

}  // namespace

ExitCode run(std::vector<std::string> arguments, Console& console) {
  Terminal terminal(console);
  const auto fail = [&](const Error& error) {
    terminal.error(error);
    return storage::exit_code(error.kind());
  };
  try {
    Tree tree;
    return parse_and_run(std::move(arguments), tree, terminal);
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::bad_alloc&) {
    return fail(Error(ErrorKind::kExhausted, "out of memory"));
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(storage::system_error(error));
  } catch (const std::exception& error) {
    return fail(Error(ErrorKind::kInternal, error.what()));
  }
}

}  // namespace hedgerow::coordinator::cli
