#include "kernels/problem/hybrid_parameters.hpp"

#include <c10/util/Exception.h>

#include <algorithm>

namespace hedgerow::kernels {

std::int64_t window_begin(WindowLayout layout, std::int64_t window_size, std::int64_t query) {
  switch (layout) {
    case WindowLayout::kNone:
      return query + 1;
    case WindowLayout::kSliding:
      return std::max<std::int64_t>(0, query - window_size + 1);
    case WindowLayout::kTerraced:
      return std::max<std::int64_t>(0, (query / window_size - 1) * window_size);
  }
  C10_THROW_ERROR(Error, c10::str("attention: unknown window layout ", static_cast<int>(layout)));
}

float window_gain(const HybridOptions& options, std::int64_t query) {
  if (options.linear_cap == 0) return 1.0F;
  const auto keys = static_cast<float>(window_begin(options.window, options.window_size, query) -
                                       options.num_sinks);
  return std::max(1.0F, keys / static_cast<float>(options.linear_cap));
}

}  // namespace hedgerow::kernels
