// Attention from its definition: all T x T weights as one tensor on ATen's autograd, in the dtype
// of q. It is what the studies train and what a feature form is compared with, and is written for
// no speed. Called by Transformer and by tests; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/laboratory/score_spec.hpp"

namespace hedgerow::worker::laboratory {

// What a spec needs beside q, k and v. Undefined tensors mean "none"; a query and a key have the
// same map (000; LoLCATs has two).
struct AttentionParameters {
  at::Tensor weight;       // [H, D, F] of z = x W + b: kHedgehog, kEluPlusOne, kRelu
  at::Tensor bias;         // [H, F]
  at::Tensor omega;        // [D, m] of kFavor and kRandomTaylor
  at::Tensor input_gate;   // [B, H, T] in 0..1, of keys
  at::Tensor output_gate;  // [B, H, T] in 0..1, of queries
  at::Tensor is_token;     // bool [B, T]; false: padding, which no query sees and which lies right
};

// Directions of N(0, 1) [D, m] in the dtype of `like`. Orthogonal: blocks of D directions of one
// Haar-distributed basis (QR with the signs of R), with lengths drawn from chi of D degrees. The
// seed alone decides, lengths too (001's code draws the lengths from another generator).
[[nodiscard]] at::Tensor draw_directions(
    std::int64_t D, std::int64_t m, bool orthogonal, std::uint64_t seed, const at::Tensor& like);

// phi(x): x [B, H, T, D] -> [B, H, T, F]. kTaylor and kLimit are the tensor powers themselves.
// Throws kUsage where those would have more than kMaxPowerFeatures.
[[nodiscard]] at::Tensor map_features(const ScoreSpec& spec,
                                      const at::Tensor& x,
                                      const AttentionParameters& parameters,
                                      bool is_query);

// score / denominator with mask and gates, which y is v times: q, k [B, H, T, D] -> [B, H, T, T].
// Throws kUsage as validate() does and where padding is not on the right.
[[nodiscard]] at::Tensor attention_weights(const at::Tensor& q,
                                           const at::Tensor& k,
                                           const ScoreSpec& spec,
                                           const AttentionParameters& parameters = {});

// y [B, H, T, E] of v [B, H, T, E].
[[nodiscard]] at::Tensor score_attention(const at::Tensor& q,
                                         const at::Tensor& k,
                                         const at::Tensor& v,
                                         const ScoreSpec& spec,
                                         const AttentionParameters& parameters = {});

// The norm alone, over the last dimension.
[[nodiscard]] at::Tensor apply_norm(OutputNorm norm, const at::Tensor& y);

// Mean entropy of the rows of weights, in nats; a row's negative weights count as 0, and it is
// divided by its sum first. Without autograd.
[[nodiscard]] double mean_entropy(const at::Tensor& weights);

}  // namespace hedgerow::worker::laboratory
