// Checks of a recipe's values: ranges of one field, rules between fields, and the collected report
// of what is wrong. Private to storage/recipe/recipe*.cpp.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "storage/recipe/recipe.hpp"
#include "storage/recipe/recipe_rules.hpp"

namespace hedgerow::storage {

// What is wrong with a recipe, each problem with the place of its key.
class RecipeProblems {
 public:
  explicit RecipeProblems(std::string file) : file_(std::move(file)) {}

  // Where the file has the key; keys that it leaves out have no line.
  void at_line(const std::string& name, int line) { lines_[name] = line; }
  void add(const std::string& name, const std::string& text);  // "<file>:<line>: <name> <text>"
  void add_sentence(const std::string& name, const std::string& text);  // "<file>:<line>: <text>"
  // Throws kUsage with all of them, one a line.
  void throw_if_any() const;

 private:
  std::string file_;
  std::map<std::string, int> lines_;
  std::vector<std::string> problems_;
};

void check_number(const std::string& name,
                  double value,
                  const FieldRules& rules,
                  RecipeProblems& problems);
void check_word(const std::string& name,
                const std::string& value,
                const FieldRules& rules,
                RecipeProblems& problems);

// Range and choices of one field, of each element for a list. Words of enums are checked where they
// are read.
template <typename T>
void check_field(const std::string& name,
                 const T& value,
                 const FieldRules& rules,
                 RecipeProblems& problems) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    check_number(name, static_cast<double>(value), rules, problems);
  } else if constexpr (std::is_same_v<T, std::string>) {
    check_word(name, value, rules, problems);
  } else if constexpr (std::is_same_v<T, std::vector<int>> ||
                       std::is_same_v<T, std::vector<std::string>>) {
    for (const auto& element : value) check_field(name, element, rules, problems);
  }
}

// The rules between fields and those that no range expresses.
void check_recipe(const Recipe& recipe, RecipeProblems& problems);

}  // namespace hedgerow::storage
