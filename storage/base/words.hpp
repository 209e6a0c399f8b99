// Words that people mistype: recipe keys, commands, options, choices, names of logs. One measure
// for all of them, so that "did you mean" is as bold everywhere.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hedgerow::storage {

// Characters to insert, delete or replace to make one word of the other (Levenshtein).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// Up to how many edits a word is taken for a mistyped one: two, or a third of its length; one of
// a word of up to four characters.
[[nodiscard]] std::size_t edit_tolerance(std::string_view word);

// The candidate that `word` was probably meant to be; empty if none is near, or if all of its
// characters would have to change. Of equally near ones the first.
[[nodiscard]] std::string nearest_word(std::string_view word,
                                       const std::vector<std::string>& candidates);

}  // namespace hedgerow::storage
