#include "coordinator/cli/command.hpp"

#include <CLI/CLI.hpp>

namespace hedgerow::coordinator::cli {

CLI::Option* add_run(CLI::App& app, std::string& directory) {
  return app.add_option("--run", directory, "the run directory")->type_name("DIR");
}

CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : "|") + word;
  CLI::IsMember is_member(words);
  is_member.description("");  // else CLI11 appends the words to the type name again
  return option->type_name(joined)->check(is_member);
}

void require(bool condition, const std::string& message) {
  if (!condition) throw storage::Error(storage::ErrorKind::kUsage, message);
}

}  // namespace hedgerow::coordinator::cli
