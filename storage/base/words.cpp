#include "storage/base/words.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hedgerow::storage {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

std::size_t edit_tolerance(std::string_view word) {
  constexpr std::size_t kShort = 4;  // two edits make half of such a word another
  return word.size() <= kShort ? 1 : std::max<std::size_t>(2, word.size() / 3);
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t least = edit_tolerance(word) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t edits = edit_distance(candidate, word);
    // Short words resemble each other by chance.
    if (edits >= least || edits >= word.size()) continue;
    least = edits;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace hedgerow::storage
