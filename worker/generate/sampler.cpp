#include "worker/generate/sampler.hpp"

#include <ATen/ATen.h>

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

constexpr std::int64_t kLikeliest = 1024;  // that top-p looks at first
constexpr std::int64_t kBlock = 512;       // tokens whose weights are summed on the device

double drawn(const SamplingOptions& options, std::int64_t row, std::int64_t position) {
  storage::PhiloxStream random(options.seed,
                               kSampleStream,
                               static_cast<std::uint32_t>(options.first_row + row),
                               static_cast<std::uint32_t>(position));
  return random.uniform();
}

std::span<const double> doubles(const at::Tensor& x) {
  return {x.const_data_ptr<double>(), static_cast<std::size_t>(x.numel())};
}

std::span<const float> floats_of(const at::Tensor& x) {
  return {x.const_data_ptr<float>(), static_cast<std::size_t>(x.numel())};
}

// The first whose weight takes what is left below 0; else the last. `left` becomes what is left
// before it.
std::size_t walk(std::span<const double> weights, double& left) {
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    if (left < weights[i]) return i;
    left -= weights[i];
  }
  return weights.size() - 1;
}

// A draw from the likeliest tokens, `weights` falling, and the sum of all weights; -1 where they do
// not hold the probability, or the last of them has equals that are not here.
std::int64_t of_likeliest(std::span<const double> weights,
                          std::span<const std::int64_t> ids,
                          double total,
                          std::int64_t vocabulary,
                          double top_p,
                          double u) {
  const bool is_all = static_cast<std::int64_t>(ids.size()) == vocabulary;
  const double wanted = top_p * total;
  double kept = 0.0;
  std::size_t size = 0;
  while (size < weights.size() && kept < wanted) kept += weights[size++];
  if (!is_all && (kept < wanted || weights[size - 1] == weights.back())) return -1;
  double left = u * kept;
  return ids[walk(weights.first(size), left)];
}

std::vector<std::int64_t> by_top_p(const at::Tensor& logits,
                                   const at::Tensor& weights,
                                   const SamplingOptions& options,
                                   std::span<const std::int64_t> rows,
                                   std::span<const std::int64_t> positions) {
  const std::int64_t vocabulary = logits.size(1), count = std::min(kLikeliest, vocabulary);
  const auto [highest, where] = at::topk(weights, count, 1);
  const at::Tensor totals = weights.sum(1).cpu();
  // Equal weights by id, as on the CPU.
  const auto [by_id, id_order] = where.cpu().sort(1);
  const auto [sorted, order] =
      highest.cpu().gather(1, id_order).sort(/*stable=*/true, 1, /*descending=*/true);
  const at::Tensor ids = by_id.gather(1, order);
  std::vector<std::int64_t> chosen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    std::int64_t token =
        of_likeliest(doubles(sorted[row]),
                     {ids[row].const_data_ptr<std::int64_t>(), static_cast<std::size_t>(count)},
                     totals[row].item<double>(),
                     vocabulary,
                     options.top_p,
                     drawn(options, rows[i], positions[i]));
    if (token < 0)
      token = sample(floats_of(logits[row].cpu().contiguous()), options, rows[i], positions[i]);
    chosen.push_back(token);
  }
  return chosen;
}

// First the block of tokens, by the blocks' sums, then the token in it.
std::vector<std::int64_t> by_weight(const at::Tensor& weights,
                                    const SamplingOptions& options,
                                    std::span<const std::int64_t> rows,
                                    std::span<const std::int64_t> positions) {
  const std::int64_t vocabulary = weights.size(1), rest = (-vocabulary % kBlock + kBlock) % kBlock;
  const at::Tensor blocks = at::constant_pad_nd(weights, {0, rest}).unflatten(1, {-1, kBlock});
  const at::Tensor sums = blocks.sum(2).cpu();
  std::vector<std::int64_t> block;
  std::vector<double> left;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto of_row = doubles(sums[static_cast<std::int64_t>(i)]);
    left.push_back(drawn(options, rows[i], positions[i]) *
                   std::accumulate(of_row.begin(), of_row.end(), 0.0));
    block.push_back(static_cast<std::int64_t>(walk(of_row, left.back())));
  }
  const at::Tensor index =
      at::tensor(block, at::kLong).to(weights.device()).view({-1, 1, 1}).expand({-1, 1, kBlock});
  const at::Tensor chosen_blocks = blocks.gather(1, index).squeeze(1).cpu();
  std::vector<std::int64_t> chosen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t first = block[i] * kBlock, count = std::min(kBlock, vocabulary - first);
    const auto of_block = doubles(chosen_blocks[static_cast<std::int64_t>(i)])
                              .first(static_cast<std::size_t>(count));
    chosen.push_back(first + static_cast<std::int64_t>(walk(of_block, left[i])));
  }
  return chosen;
}

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
  double left = drawn(options, row, position) * kept;
  for (const std::size_t token : order) {
    left -= weight[token];
    if (left < 0.0) return static_cast<std::int64_t>(token);
  }
  return static_cast<std::int64_t>(order.back());  // rounding ate the last bit of the sum
}

std::vector<std::int64_t> sample_rows(const at::Tensor& logits,
                                      const SamplingOptions& options,
                                      std::span<const std::int64_t> rows,
                                      std::span<const std::int64_t> positions) {
  std::vector<std::int64_t> chosen;
  if (logits.is_cpu()) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const at::Tensor row = logits[static_cast<std::int64_t>(i)].contiguous();
      const bool is_finite = at::isfinite(row).all().item<bool>();
      chosen.push_back(is_finite ? sample(floats_of(row), options, rows[i], positions[i]) : -1);
    }
    return chosen;
  }
  const auto [lowest, highest] = at::aminmax(logits, 1);  // NaN where there is one
  const at::Tensor is_finite = at::isfinite(lowest).logical_and_(at::isfinite(highest));
  if (options.temperature == 0.0) {
    const at::Tensor first = at::where(is_finite, logits.argmax(1), -1).cpu();  // of equal maxima
    const auto* ids = first.const_data_ptr<std::int64_t>();
    return {ids, ids + first.numel()};
  }
  const at::Tensor weights = (logits.to(at::kDouble) - highest.to(at::kDouble).unsqueeze(1))
                                 .div_(options.temperature)
                                 .exp_()
                                 .masked_fill_(is_finite.logical_not().unsqueeze(1), 1.0);
  chosen = options.top_p < 1.0 ? by_top_p(logits, weights, options, rows, positions)
                               : by_weight(weights, options, rows, positions);
  const at::Tensor on_host = is_finite.cpu();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (!on_host.const_data_ptr<bool>()[i]) chosen[i] = -1;
  }
  return chosen;
}

}  // namespace hedgerow::worker
