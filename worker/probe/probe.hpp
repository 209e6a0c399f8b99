// What the attention of a model's layers is like, by head: figures of the teacher's softmax, of
// simple maps in its place, and of a student on the teacher's own path (its q, k and v are the
// teacher's, so that no layer's error reaches another). Of at most 64 queries a sequence
// (attention_rows.hpp), R x T and never T x T; layers are loaded one after another.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "storage/model/model_config.hpp"
#include "storage/shards/tokens_file.hpp"
#include "worker/model/student.hpp"
#include "worker/probe/attention_corners.hpp"

namespace hedgerow::worker {

// Figures of attention weights a [H, R, T] of the queries `rows`, each row's sum 1, 0 at later
// keys; [H] fp64 on the CPU, means over the rows (those without a defined value left out).
struct WeightFigures {
  at::Tensor entropy;  // -sum a log a, nats
  // sum_j (i - j) a_ij, tokens: how far back a query attends (LoLCATs' effective sequence length,
  // as its code measures it)
  at::Tensor look_back;
};
[[nodiscard]] WeightFigures weight_figures(const at::Tensor& weights,
                                           const std::vector<std::int64_t>& rows);

// KL(a || b) by head, nats, b clamped at 1e-12.
[[nodiscard]] at::Tensor divergence(const at::Tensor& a, const at::Tensor& b);

// Spearman's rank correlation of weights and scores over the keys where `counts` [R, T] is set,
// mean over rows with three of them at least: 1 where a larger score always has the larger weight
// (Hedgehog's monotonicity). Equal values have the mean of their ranks.
[[nodiscard]] at::Tensor monotonicity(const at::Tensor& weights,
                                      const at::Tensor& scores,
                                      const at::Tensor& counts);

// phi [H, T, F] of tokens -> exp(entropy of the squared singular values' shares): F where all
// directions carry the same, 1 where one carries all. fp64.
[[nodiscard]] at::Tensor effective_rank(const at::Tensor& phi);
// The share of features whose mean over the tokens is below 1e-3 of their head's mean feature.
[[nodiscard]] at::Tensor dead_features(const at::Tensor& phi);

struct ProbeOptions {
  const Student* student = nullptr;  // nullptr: the teacher and the simple maps alone
  std::set<int> layers{};            // empty: all
  std::size_t max_measured = 0;      // of later sequences look_back alone; 0: all of all
  std::set<LayerAndHead> corners{};  // attention_corners() of these, of the first sequence
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  std::function<void(int done, int all)> progress = {};
};

// {"sequences" (of how many the figures by head are), "seq_len", "by_sequence": [{"sequence" (its
// index in the file), "look_back" (the softmax's, mean over the probed layers and heads)}],
// "layers": [{"layer", "heads": [{"head", "softmax": {entropy, look_back}, "favor": {"norms":
// {apart_mean, apart_max, sum_mean, sum_max}, log10_features}, "series": {error_of_order,
// rows_of_order} (exponential_forms.hpp; the two maxima are over all sequences), "maps": {NAME:
// {entropy, monotonicity, kl}}, and with a student "student": {entropy, kl, monotonicity (of its
// linear branch), relative_error, window, sinks, linear, effective_rank, dead_features,
// least_mass}}]}]}: means over the sequences. relative_error: the squared error of the queries'
// outputs over their mean square; the three shares sum to 1; least_mass: the smallest sum of linear
// weights that a query has which has such keys (before the division). With corners: "corners":
// [{"layer", "head", "sequence", attention_corners()'s}]. Throws kUsage for a layer that the model
// does not have.
[[nodiscard]] nlohmann::json probe_attention(const storage::ModelDirectory& model,
                                             const storage::TokenSequences& tokens,
                                             const std::vector<std::int64_t>& sequences,
                                             const ProbeOptions& options);

}  // namespace hedgerow::worker
