// A run's variants as a table, which metrics, status and watch show.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/cli/run/whole_job.hpp"
#include "coordinator/status/variants.hpp"

namespace hedgerow::coordinator::cli {

// A row a variant, the smallest KL first; * stands before those on the front of bytes and KL. What
// the whole jobs take is a column where `jobs`, by variant, has any. Empty: there are no variants.
[[nodiscard]] std::vector<std::string> variant_lines(
    const std::vector<VariantFigures>& variants,
    int width,
    const std::map<std::string, WholeJob>& jobs = {});

}  // namespace hedgerow::coordinator::cli
