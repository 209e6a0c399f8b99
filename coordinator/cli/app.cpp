#include "coordinator/cli/app.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <new>
#include <utility>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/help.hpp"
#include "coordinator/cli/terminal.hpp"
#include "storage/build_info.hpp"
#include "storage/filesystem_error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

constexpr const char* kAbout =
    "Turns a pretrained softmax-attention language model into a linear-attention one, as a job "
    "that resumes.";

// The tree with what the options write to.
struct Tree {
  CLI::App app{kAbout, "hedgerow"};
  TerminalOptions terminal;
  bool version = false;
  std::vector<std::pair<CLI::App*, RunCommand>> commands;

  Tree() {
    add_common(app);
    app.add_flag("--version", version, "print the version and exit");
    for (const Command& command : all_commands()) {
      CLI::App* sub = app.add_subcommand(command.name, command.summary);
      RunCommand run = command.declare(*sub);
      add_common(*sub);
      commands.emplace_back(sub, std::move(run));
    }
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void add_common(CLI::App& target) {
    target.set_help_flag("-h,--help", "print this help and exit");
    target.add_flag("--json", terminal.json, "answer in JSON, one object a line");
    target.add_flag("-q,--quiet", terminal.quiet, "no progress, no talk; errors and answers stay");
    target.add_flag(
        "-v,--verbose", terminal.verbose, "say more; -vv: what child processes say too");
  }
};

// How far two words are apart, in edits (Levenshtein).
std::size_t edits_between(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

void require_known_command(const std::vector<std::string>& arguments) {
  const auto word = std::find_if(
      arguments.begin(), arguments.end(), [](const auto& a) { return !a.starts_with("-"); });
  if (word == arguments.end()) return;
  const Command* nearest = nullptr;
  std::size_t distance = 3;
  for (const Command& command : all_commands()) {
    if (command.name == *word) return;
    const std::size_t edits = edits_between(command.name, *word);
    if (edits < distance) {
      distance = edits;
      nearest = &command;
    }
  }
  const std::string hint =
      nearest == nullptr ? "" : ", did you mean '" + std::string(nearest->name) + "'?";
  throw Error(ErrorKind::kUsage,
              "'" + *word + "' is no command" + hint + "; 'hedgerow --help' lists them all");
}

const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : *chosen.front();
}

std::string see_help(const CLI::App& app) {
  const std::string command = app.get_parent() == nullptr ? "" : app.get_name() + " ";
  return "; see 'hedgerow " + command + "--help'";
}

ExitCode print_help(const CLI::App& app, Terminal& terminal) {
  const std::string text = help_text(app, terminal.width());
  terminal.print(std::string_view(text).substr(0, text.size() - 1));
  terminal.print_json({{"help", text}});
  return ExitCode::kOk;
}

ExitCode parse_and_run(std::vector<std::string> arguments, Tree& tree, Terminal& terminal) {
  // Before parsing, so that errors of the parser itself obey --json.
  terminal.configure("hedgerow",
                     {.json = std::count(arguments.begin(), arguments.end(), "--json") > 0});
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
    throw Error(ErrorKind::kUsage, error.what() + see_help(app));
  }
  const CLI::App& app = innermost(tree.app);
  terminal.configure(app.get_name(), tree.terminal);
  if (wants_help) return print_help(app, terminal);
  if (tree.version) {
    terminal.print("hedgerow " + storage::version() + " (" + storage::git_hash() + ")");
    terminal.print_json({{"version", storage::version()}, {"git_hash", storage::git_hash()}});
    return ExitCode::kOk;
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
