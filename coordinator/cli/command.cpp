#include "coordinator/cli/command.hpp"

#include <CLI/CLI.hpp>
#include <cctype>
#include <filesystem>

namespace hedgerow::coordinator::cli {

CLI::Option* add_run(CLI::App& app, std::string& directory) {
  return app.add_option("--run", directory, "the run directory; the current one unless told")
      ->type_name("DIR");
}

CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : "|") + word;
  CLI::IsMember is_member(words);
  is_member.description("");  // else CLI11 appends the words to the type name again
  return option->type_name(joined)->check(is_member);
}

bool lists_choices(const std::string& value_name) {
  return !value_name.empty() && std::islower(static_cast<unsigned char>(value_name.front())) != 0;
}

std::string run_or_here(const std::string& directory, const std::string& otherwise) {
  if (!directory.empty()) return directory;
  require(std::filesystem::exists("run.toml"),
          "missing: --run DIR (the run directory)" +
              (otherwise.empty() ? "" : ", or " + otherwise) +
              "; the current directory is none, it holds no "
              "run.toml");
  return ".";
}

void require(bool condition, const std::string& message) {
  if (!condition) throw storage::Error(storage::ErrorKind::kUsage, message);
}

}  // namespace hedgerow::coordinator::cli
