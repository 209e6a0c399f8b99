#include "worker/generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/base/philox.hpp"

namespace hedgerow::worker {
namespace {

// Philox stream family of the sampler, apart from those of parameters and data at the same seed.
constexpr std::uint32_t kSampleStream = 0x73616d70;

}  // namespace

void SamplingOptions::validate() const {
  if (!(temperature >= 0.0) || !std::isfinite(temperature)) {
    throw storage::Error(
        storage::ErrorKind::kUsage,
        "temperature must be 0 (greedy) or more, found " + std::to_string(temperature));
  }
  if (!(top_p > 0.0 && top_p <= 1.0)) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         "top-p must be in (0, 1], found " + std::to_string(top_p));
  }
}

std::int64_t sample(std::span<const float> logits,
                    const SamplingOptions& options,
                    std::int64_t row,
                    std::int64_t position) {
  const auto likeliest = std::ranges::max_element(logits) - logits.begin();
  if (options.temperature == 0.0) return likeliest;
  const double top = logits[static_cast<std::size_t>(likeliest)];
  std::vector<double> weight(logits.size());
  for (std::size_t i = 0; i < weight.size(); ++i)
    weight[i] = std::exp((logits[i] - top) / options.temperature);
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  double kept = std::accumulate(weight.begin(), weight.end(), 0.0);
  if (options.top_p < 1.0) {
    // By falling weight, equal ones by id: a fixed order, whatever the sort does with ties.
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
      return weight[a] != weight[b] ? weight[a] > weight[b] : a < b;
    });
    const double wanted = options.top_p * kept;
    kept = 0.0;
    std::size_t size = 0;
    while (size < order.size() && kept < wanted) kept += weight[order[size++]];
    order.resize(size);
  }
  storage::PhiloxStream random(options.seed,
                               kSampleStream,
                               static_cast<std::uint32_t>(row),
                               static_cast<std::uint32_t>(position));
  double left = random.uniform() * kept;
  for (const std::size_t token : order) {
    left -= weight[token];
    if (left < 0.0) return static_cast<std::int64_t>(token);
  }
  return static_cast<std::int64_t>(order.back());  // rounding ate the last bit of the sum
}

}  // namespace hedgerow::worker
