#include "coordinator/cli/command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "storage/base/words.hpp"

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

std::string run_or_here(const std::string& directory, const std::string& otherwise) {
  if (!directory.empty()) return directory;
  require(std::filesystem::exists("run.toml"),
          "missing: --run DIR (the run directory)" +
              (otherwise.empty() ? "" : ", or " + otherwise) +
              "; the current directory is none, it holds no "
              "run.toml");
  return ".";
}

std::string did_you_mean(const std::string& word,
                         const std::vector<std::string>& candidates,
                         const std::string& prefix) {
  // Words are cut short more often than mistyped: "temp" is "temperature" before it is "help".
  constexpr std::size_t kTelling = 3;  // fewer letters begin too many words
  const auto begun = std::find_if(candidates.begin(), candidates.end(), [&](const auto& candidate) {
    return word.size() >= kTelling && candidate.starts_with(word);
  });
  const std::string meant =
      begun == candidates.end() ? storage::nearest_word(word, candidates) : *begun;
  return meant.empty() ? "" : ", did you mean '" + prefix + meant + "'?";
}

void require(bool condition, const std::string& message) {
  if (!condition) throw storage::Error(storage::ErrorKind::kUsage, message);
}

}  // namespace hedgerow::coordinator::cli
