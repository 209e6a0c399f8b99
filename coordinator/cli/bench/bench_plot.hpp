// The plot of `bench kernels` as an SVG of its own: time a token against T, both axes logarithmic,
// a panel for each direction and head count, a line for each variant, softmax dashed, the crossover
// marked. Printable ASCII, no script, no font or file from elsewhere; it has a title and a
// description, a text at every point, marks that differ in shape as well as in colour, and colours
// for a light and a dark background. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/bench/bench_report.hpp"

namespace hedgerow::coordinator::cli {

// `subtitle` says where and of what it was measured. Without lines: the frame and a sentence.
[[nodiscard]] std::string kernel_plot(const std::vector<KernelLine>& lines,
                                      const std::string& subtitle);

// 1, 2 and 5 times powers of ten around [least, most], the outermost at or beyond them; least > 0.
[[nodiscard]] std::vector<double> log_ticks(double least, double most);

}  // namespace hedgerow::coordinator::cli
