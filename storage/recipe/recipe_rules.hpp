// What is known of a recipe's field beside its key and default. Private to storage/recipe/recipe*.
#pragma once

#include <limits>
#include <string_view>

namespace hedgerow::storage {

struct FieldRules {
  std::string_view comment;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;       // the minimum itself is not allowed
  std::string_view choices{};   // of a string: "a|b|c"; empty: any
  bool safe_to_change = false;  // on resume
};

// "a" is one of "a|b|c".
inline bool is_choice(std::string_view word, std::string_view choices) {
  while (!choices.empty()) {
    const std::size_t end = choices.find('|');
    if (choices.substr(0, end) == word) return true;
    choices = end == std::string_view::npos ? std::string_view() : choices.substr(end + 1);
  }
  return false;
}

}  // namespace hedgerow::storage
