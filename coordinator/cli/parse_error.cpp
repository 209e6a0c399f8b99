#include "coordinator/cli/parse_error.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "storage/base/words.hpp"

namespace hedgerow::coordinator::cli {
namespace {

// A limit from here on is only there to keep numbers sane; "at least 1" tells more than its digits,
// except to whom it refused.
constexpr double kUnlimited = 1 << 20;

// A limit in all its digits: number_text rounds.
std::string limit_text(double limit) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", limit);
  return text;
}

std::string see_help(const CLI::App& command) {
  const std::string name = command.get_parent() == nullptr ? "" : command.get_name() + " ";
  return "; see 'hedgerow " + name + "--help'";
}

// "--out FILE" or "MODEL", as the usage line has it.
std::string shown_name(const CLI::Option& option) {
  if (!option.nonpositional()) return option.get_name(true, false);
  const std::string type = option.get_items_expected_max() == 0 ? "" : option.get_type_name();
  if (type.empty()) return option.get_name();
  return option.get_name() + " " + (lists_choices(type) ? "WORD" : type);
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return lists_choices(type) ? CLI::detail::split(type, '|') : std::vector<std::string>{};
}

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

// Words are cut short more often than mistyped: "temp" is "temperature" before it is "help".
std::string meant_word(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kTelling = 3;  // fewer letters begin too many words
  const auto begun = std::find_if(candidates.begin(), candidates.end(), [&](const auto& candidate) {
    return word.size() >= kTelling && candidate.starts_with(word);
  });
  return begun == candidates.end() ? storage::nearest_word(word, candidates) : *begun;
}

std::string unknown_option(const std::string& given, const CLI::App& command) {
  const std::string word = given.substr(0, given.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  // "-recipe" is near "--recipe", and CLI11 reports it letter by letter or whole. Compared without
  // dashes, which would make every option look like every other.
  const std::string bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  const std::string meant = bare.size() < 2 ? "" : meant_word(bare, names);
  const std::string of = command.get_parent() == nullptr ? "hedgerow" : command.get_name();
  return of + " has no option " + word + (meant.empty() ? "" : ", did you mean '--" + meant + "'?");
}

// "recipe.toml" or "my-run" without the option that takes it.
std::string unexpected_argument(const std::string& word, const CLI::App& command) {
  const auto takes = [&command](const char* name) {
    return command.get_option_no_throw(name) != nullptr;
  };
  std::error_code none;
  std::string option;
  if (word.ends_with(".toml") && takes("--recipe")) option = "--recipe";
  if (std::filesystem::is_directory(word, none) && takes("--run")) option = "--run";
  return "unexpected argument '" + word + "'" +
         (option.empty() ? "" : ", did you mean '" + option + " " + word + "'?");
}

std::string missing_options(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    const std::vector<std::string> choices = choices_of(*option);
    text += (text.empty() ? "" : ", and ") + shown_name(*option) + " (" +
            option->get_description() + (choices.empty() ? "" : ": " + listed(choices)) + ")";
  }
  return text;
}

// The option that an error is about: CLI11 says it only in its text.
const CLI::Option* option_of(const CLI::App& command, const std::string& text) {
  const CLI::Option* found = nullptr;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool is_named = text.starts_with(name + ":") || text.starts_with(name + " ") ||
                          text.find(": " + name + " = ") != std::string::npos ||
                          text.find("to " + name + ",") != std::string::npos ||
                          text.ends_with(" for " + name);
    if (is_named && (found == nullptr || name.size() > found->get_name().size())) found = option;
  }
  return found;
}

// What CLI11's range check would have taken, from its text.
std::string expected_number(const std::string& text, const std::string& found) {
  double least = 0.0, most = 0.0;
  const std::size_t at = text.find("not in range ");
  if (at == std::string::npos ||
      std::sscanf(text.c_str() + at, "not in range %lf to %lf", &least, &most) != 2) {
    return "a number";
  }
  const double value = std::strtod(found.c_str(), nullptr);
  if (most < kUnlimited || value > most)
    return "a number from " + limit_text(least) + " to " + limit_text(most);
  // CLI11's "positive" begins at the smallest number above zero, which it prints as zero.
  if (value == least) return "a number above " + limit_text(least);
  return "a number of at least " + limit_text(least);
}

// Of a list of values the one that is wrong: no choice, or the number that CLI11's text names.
std::string refused_value(const std::vector<std::string>& given,
                          const std::vector<std::string>& choices,
                          const std::string& text) {
  const auto refused = std::find_if(given.begin(), given.end(), [&](const std::string& value) {
    return choices.empty() ? text.find(" " + value + " not in range") != std::string::npos
                           : std::find(choices.begin(), choices.end(), value) == choices.end();
  });
  return refused == given.end() ? given.back() : *refused;
}

std::string wrong_value(const CLI::Option& option, const std::string& text) {
  const std::vector<std::string> given = option.results();
  const std::string name = option.get_name();
  if (option.get_items_expected_max() == 0) return name + " takes no value";
  if (given.empty()) {
    const std::string type = option.get_type_name();
    return name + " needs a value: " +
           listed(choices_of(option).empty() ? std::vector{type} : choices_of(option)) + " (" +
           option.get_description() + ")";
  }
  if (given.size() > static_cast<std::size_t>(option.get_items_expected_max()))
    return name + ": expected once, found " + std::to_string(given.size()) + " times";
  const std::vector<std::string> choices = choices_of(option);
  const std::string found = refused_value(given, choices, text);
  const std::string expected = choices.empty() ? expected_number(text, found) : listed(choices);
  return name + ": expected " + expected + ", found '" + found + "'" + did_you_mean(found, choices);
}

std::string what_is_wrong(const CLI::App& root,
                          const CLI::App& command,
                          const CLI::ParseError& error) {
  const std::vector<std::string> surplus = root.remaining(/*recurse=*/true);
  const auto option = std::find_if(surplus.begin(), surplus.end(), [](const std::string& word) {
    return word.size() > 1 && word.starts_with("-") && word != "--";
  });
  if (option != surplus.end()) return unknown_option(*option, command);
  const std::string text = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const std::string missing = missing_options(command);
    if (!missing.empty()) return "missing: " + missing;
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !surplus.empty())
    return unexpected_argument(surplus.front(), command);
  const CLI::Option* about = option_of(command, text);
  return about == nullptr ? text : wrong_value(*about, text);
}

}  // namespace

std::string parse_error_text(const CLI::App& root,
                             const CLI::App& command,
                             const CLI::ParseError& error) {
  return what_is_wrong(root, command, error) + see_help(command);
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string meant = meant_word(word, candidates);
  return meant.empty() ? "" : ", did you mean '" + meant + "'?";
}

}  // namespace hedgerow::coordinator::cli
