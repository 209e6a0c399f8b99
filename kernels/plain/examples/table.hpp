// What the three programs share: inputs by a formula, and their output.
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

namespace hedgerow::plain::examples {

// [rows, columns] of formula(row, column), both from 0.
template <typename Formula>
std::vector<double> table(std::size_t rows, std::size_t columns, Formula formula) {
  std::vector<double> values(rows * columns);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = formula(static_cast<double>(i / columns), static_cast<double>(i % columns));
  }
  return values;
}

// A line a row, six decimals.
inline void print(std::span<const double> values, std::size_t columns) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("%.6f%c", values[i], (i + 1) % columns == 0 ? '\n' : ' ');
  }
}

}  // namespace hedgerow::plain::examples
