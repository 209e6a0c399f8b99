#include "worker/probe/exponential_forms.hpp"

#include <ATen/ATen.h>

#include <cmath>

namespace hedgerow::worker {

RandomFeatureNeeds random_feature_needs(const at::Tensor& q,
                                        const at::Tensor& k,
                                        const std::vector<std::int64_t>& rows,
                                        const at::Tensor& scores,
                                        const at::Tensor& seen) {
  constexpr double kRelativeError = 0.1;
  const double root = std::sqrt(static_cast<double>(q.size(2)));
  const auto norms = [&](const at::Tensor& x) {
    return x.to(at::kDouble).square().sum(-1).div(root);
  };
  const at::Tensor index = at::tensor(rows, at::kLong).to(q.device());
  const at::Tensor of_keys = norms(k).repeat_interleave(q.size(0) / k.size(0), 0);
  const at::Tensor apart = norms(q.index_select(1, index)).unsqueeze(2) + of_keys.unsqueeze(1);
  const at::Tensor pairs = seen.flatten().nonzero().flatten();
  const at::Tensor of_pairs = apart.flatten(1).index_select(1, pairs);
  const at::Tensor of_sums =
      (of_pairs + scores.to(at::kDouble).flatten(1).index_select(1, pairs).mul(2.0)).clamp_min(0.0);
  const at::Tensor median = std::get<0>(of_sums.median(1));
  // log10(e^x - 1) = x log10(e) + log10(1 - e^-x), which does not overflow.
  const at::Tensor log10_features = median * std::log10(std::exp(1.0)) +
                                    median.neg().expm1().neg().log10() -
                                    2.0 * std::log10(kRelativeError);
  return {.apart_mean = of_pairs.mean(1).cpu(),
          .apart_max = of_pairs.amax(1).cpu(),
          .sum_mean = of_sums.mean(1).cpu(),
          .sum_max = of_sums.amax(1).cpu(),
          .log10_features = log10_features.clamp_min(0.0).cpu()};
}

SeriesFigures series_figures(const at::Tensor& scores, const at::Tensor& seen) {
  const at::Tensor s = scores.to(at::kDouble), unseen = seen.logical_not();
  // In fp64: the differences of high orders are smaller than fp32's last bit.
  const at::Tensor a = at::softmax(s.masked_fill(unseen, -INFINITY), -1);
  const at::Tensor term = at::ones_like(s), sum = at::zeros_like(s);
  std::vector<at::Tensor> errors, shares;
  for (int n = 0; n <= kLargestSeriesOrder; ++n) {
    if (n > 0) term.mul_(s).div_(n);
    sum.add_(term);
    const at::Tensor products = sum.masked_fill(unseen, 0.0);
    const at::Tensor denominator = products.sum(-1, true);
    const at::Tensor is_defined = denominator.gt(0.0).squeeze(-1);
    const at::Tensor error = (products / denominator - a).abs().sum(-1);
    errors.push_back(error.masked_fill(is_defined.logical_not(), NAN).nanmean(-1));
    shares.push_back(is_defined.to(at::kDouble).mean(-1));
  }
  return {.error_of_order = at::stack(errors, 1).cpu(),
          .rows_of_order = at::stack(shares, 1).cpu()};
}

}  // namespace hedgerow::worker
