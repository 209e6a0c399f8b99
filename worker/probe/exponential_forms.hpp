// What a head's queries and keys ask of the two forms that stand for softmax's exponential without
// parameters: positive random features (FAVOR+, arXiv 2009.14794) and the exponential's series
// (arXiv 2507.23632). On the teacher's q and k after rotary embedding, each scaled by D^-1/4, so
// that q.k is the score. Figures are [H], or [H, N]; fp64 on the CPU, of fp32 scores.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace hedgerow::worker {

// Over the pairs of a sampled query and a key that it sees, of one sequence: |q|^2 + |k|^2 (apart)
// and |q + k|^2 (sum).
//
// log10_features: log10 of the number m of random features with which the estimate of exp(q.k) has
// a relative standard deviation of 0.1 at the pair whose |q + k|^2 is the median of all (the lower
// of two); 0 where one is enough. From relative variance = (exp(|q + k|^2) - 1) / m. What that is,
// and is not: the law is exact for one pair and independent Gaussian features, in exact arithmetic.
// Orthogonal features have less variance, at most so much. It is a law of the weight before the
// division: of a row's quotient of sums it says nothing exact. Half of the pairs need more, the
// largest far more. And where m is out of reach the estimates that one sees are mostly too small
// and alike, since the mean rests on draws that do not occur: no sample shows this variance.
struct RandomFeatureNeeds {
  at::Tensor apart_mean, apart_max, sum_mean, sum_max, log10_features;
};

// q [H, T, D], k [G, T, D]; scores [H, R, T] of q.k / sqrt(D) at the queries `rows`; seen [R, T]:
// the keys that each query sees.
[[nodiscard]] RandomFeatureNeeds random_feature_needs(const at::Tensor& q,
                                                      const at::Tensor& k,
                                                      const std::vector<std::int64_t>& rows,
                                                      const at::Tensor& scores,
                                                      const at::Tensor& seen);

inline constexpr int kLargestSeriesOrder = 20;

// With P_n(s) = sum over m <= n of s^m / m!, of the scores as they are (a series, unlike softmax,
// is not the same for scores that are all shifted): the weights P_n(s_ij) / sum_j P_n(s_ij). For n
// = 0 they are the mean over the keys.
struct SeriesFigures {
  // [H, 21], n = 0 to 20: the sum of absolute differences from the softmax's weights, which have
  // sum 1, mean over the queries whose denominator is above 0; NaN where none has one. An odd order
  // may have denominators of any sign, and weights below 0: its error has no bound.
  at::Tensor error_of_order;
  // The share of those queries; 1 for even orders.
  at::Tensor rows_of_order;
};
[[nodiscard]] SeriesFigures series_figures(const at::Tensor& scores, const at::Tensor& seen);

}  // namespace hedgerow::worker
