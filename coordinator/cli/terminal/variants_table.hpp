// A run's variants as a table, which metrics, status and watch show.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/status/variants.hpp"

namespace hedgerow::coordinator::cli {

// One more column: what stands there by variant.
struct VariantColumn {
  std::string title;
  std::map<std::string, std::string> cells;
};

// A row a variant, the smallest KL first; * stands before those on the front of bytes and KL.
// Empty: there are no variants.
[[nodiscard]] std::vector<std::string> variant_lines(const std::vector<VariantFigures>& variants,
                                                     int width,
                                                     const VariantColumn& more = {});

}  // namespace hedgerow::coordinator::cli
