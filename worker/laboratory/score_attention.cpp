#include "worker/laboratory/score_attention.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr double kNormEpsilon = 1e-12;  // torch's of normalize; beside a variance 1e-6
constexpr double kVarianceEpsilon = 1e-6;

double root4(const at::Tensor& x) { return std::pow(static_cast<double>(x.size(-1)), -0.25); }

// What makes x'_q.x'_k the exponent.
double scale_of(const ScoreSpec& spec, const at::Tensor& x) {
  return spec.scale_by_width ? 1.0 / std::sqrt(static_cast<double>(x.size(-1))) : root4(x);
}

// z = x W + b, or x where there is no W.
at::Tensor project(const at::Tensor& x, const AttentionParameters& parameters) {
  at::Tensor z = parameters.weight.defined() ? at::matmul(x, parameters.weight) : x;
  if (parameters.bias.defined()) z = z + parameters.bias.unsqueeze(1);
  return z;
}

// x^(tensor n) of [.., D] -> [.., D^n].
at::Tensor next_power(const at::Tensor& power, const at::Tensor& x) {
  return at::einsum("...i,...j->...ij", {power, x}).flatten(-2);
}

void check_power(const ScoreSpec& spec, std::int64_t width, int order) {
  double count = 1;
  for (int n = 0; n < order; ++n) count *= static_cast<double>(width);
  if (count > static_cast<double>(kMaxPowerFeatures))
    throw storage::Error(storage::ErrorKind::kUsage,
                         "attention '" + spec.name + "', order: " + std::to_string(width) + "^" +
                             std::to_string(order) + " features are more than " +
                             std::to_string(kMaxPowerFeatures) +
                             "; choose a lower order or narrower heads");
}

// [1, x, x^2 / sqrt(2!), ..]: phi(q).phi(k) = sum_{n <= order} (q.k)^n / n!.
at::Tensor taylor_features(const ScoreSpec& spec, const at::Tensor& x) {
  check_power(spec, x.size(-1), spec.order);
  at::Tensor power = at::ones_like(x.narrow(-1, 0, 1));
  std::vector<at::Tensor> parts{power};
  for (int n = 1; n <= spec.order; ++n) {
    power = next_power(power, x) / std::sqrt(static_cast<double>(n));
    parts.push_back(power);
  }
  return at::cat(parts, -1);
}

// The n-th tensor power of [1, x / sqrt(n)]: phi(q).phi(k) = (1 + q.k / n)^n (001).
at::Tensor limit_features(const ScoreSpec& spec, const at::Tensor& x) {
  check_power(spec, x.size(-1) + 1, spec.order);
  const at::Tensor base = at::cat(
      {at::ones_like(x.narrow(-1, 0, 1)), x / std::sqrt(static_cast<double>(spec.order))}, -1);
  at::Tensor power = base;
  for (int n = 1; n < spec.order; ++n) power = next_power(power, base);
  return power;
}

// exp(Omega^T x - |x|^2 / 2) / sqrt(m). A query's scale cancels in a sum's denominator, so its
// largest exponent stands in for |x|^2 / 2 there, as in kernels/plain.
at::Tensor random_features(const ScoreSpec& spec,
                           const at::Tensor& x,
                           const AttentionParameters& parameters,
                           bool is_shifted) {
  const at::Tensor z = at::matmul(x, parameters.omega);
  const at::Tensor shift =
      is_shifted ? z.detach().amax(-1, /*keepdim=*/true) : x.square().sum(-1, true) / 2;
  return (z - shift).exp() / std::sqrt(static_cast<double>(spec.num_features));
}

// relu(x) cos and relu(x) sin of (pi / 2) t / T: weights relu(q).relu(k) cos((pi / 2)(i - j) / T).
at::Tensor cosformer_features(const at::Tensor& x) {
  const std::int64_t T = x.size(-2);
  const at::Tensor angle =
      at::arange(T, x.options()).mul(std::numbers::pi / 2 / static_cast<double>(T)).unsqueeze(-1);
  const at::Tensor positive = x.relu();
  return at::cat({positive * angle.cos(), positive * angle.sin()}, -1);
}

at::Tensor hedgehog_features(const ScoreSpec& spec, at::Tensor z) {
  if (spec.negation) z = at::cat({z, -z}, -1);
  return spec.feature_softmax ? z.softmax(-1) : z.exp();
}

// sum_{n <= order} p^n / n!, from the highest order inward.
at::Tensor series(const at::Tensor& p, int order) {
  at::Tensor sum = at::ones_like(p);
  for (int n = order; n >= 1; --n) sum = 1 + sum * p / static_cast<double>(n);
  return sum;
}

// bool, broadcast over [B, H, T, T]; true where the query sees the key.
at::Tensor seen_keys(const at::Tensor& q,
                     const at::Tensor& k,
                     const ScoreSpec& spec,
                     const AttentionParameters& parameters) {
  at::Tensor seen = at::ones({q.size(-2), k.size(-2)}, q.options().dtype(at::kBool));
  if (spec.causal) seen = seen.tril();
  if (!parameters.is_token.defined()) return seen;
  const at::Tensor& token = parameters.is_token;
  const bool is_right =
      !token.slice(1, 1).logical_and(token.slice(1, 0, -1).logical_not()).any().item<bool>();
  if (!is_right || !token.select(1, 0).all().item<bool>())
    throw storage::Error(storage::ErrorKind::kUsage,
                         "padding: expected tokens first and padding on the right of each "
                         "sequence, found a token behind padding");
  return seen.logical_and(token.unsqueeze(1).unsqueeze(1));
}

// s, clamped, where the key is seen, and -infinity elsewhere. Added, since the mask is T x T and a
// sum goes by vectors, where a masked_fill of all weights goes value by value, and again backward.
at::Tensor masked_exponents(const at::Tensor& q,
                            const at::Tensor& k,
                            const ScoreSpec& spec,
                            const at::Tensor& seen) {
  at::Tensor s = at::matmul(q * scale_of(spec, q), (k * scale_of(spec, k)).transpose(-1, -2));
  if (spec.clamp > 0) s = s.clamp_max(spec.clamp);
  return s + at::zeros(seen.sizes(), s.options())
                 .masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity());
}

// Scores where seen, 0 elsewhere. Under a detached sum a factor of the row cancels, and e^s is
// without its largest.
at::Tensor masked_scores(const at::Tensor& q,
                         const at::Tensor& k,
                         const ScoreSpec& spec,
                         const AttentionParameters& parameters,
                         const at::Tensor& seen) {
  if (spec.score == Score::kExp) {
    at::Tensor s = masked_exponents(q, k, spec, seen);
    if (spec.denominator == Denominator::kDetachedSum)
      s = s - s.detach().amax(-1, /*keepdim=*/true);
    return s.exp();
  }
  const at::Tensor p = at::matmul(map_features(spec, q, parameters, /*is_query=*/true),
                                  map_features(spec, k, parameters, false).transpose(-1, -2));
  const at::Tensor scores = spec.score == Score::kSeries ? series(p, spec.order) : p;
  const bool is_padded = parameters.is_token.defined();
  if (spec.causal && !is_padded) return scores.tril();  // several times faster
  return scores.masked_fill(seen.logical_not(), 0.0);
}

at::Tensor divided(const at::Tensor& scores, const ScoreSpec& spec, const at::Tensor& seen) {
  const double epsilon = spec.score == Score::kExp ? 0.0 : kSumEpsilon;
  switch (spec.denominator) {
    case Denominator::kSum:
      return scores / (scores.sum(-1, true) + epsilon);
    case Denominator::kDetachedSum:
      return scores / (scores.detach().sum(-1, true) + epsilon);
    case Denominator::kLength:
      return scores / seen.sum(-1, true).to(scores.scalar_type());
    case Denominator::kNone:
      break;
  }
  return scores;
}

void check_gate(bool is_wanted, const at::Tensor& gate, const ScoreSpec& spec, const char* field) {
  if (is_wanted && !gate.defined())
    throw storage::Error(
        storage::ErrorKind::kUsage,
        "attention '" + spec.name + "', " + field + ": the gate is on, but none was given");
}

}  // namespace

at::Tensor draw_directions(
    std::int64_t D, std::int64_t m, bool orthogonal, std::uint64_t seed, const at::Tensor& like) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  if (!orthogonal) return at::randn({D, m}, generator, options).to(like.options());
  std::vector<at::Tensor> blocks;
  for (std::int64_t begin = 0; begin < m; begin += D) {
    const auto [basis, r] = at::linalg_qr(at::randn({D, D}, generator, options));
    const at::Tensor lengths = at::randn({D, D}, generator, options).norm(2, 0);
    blocks.push_back((basis * r.diagonal().sign() * lengths).narrow(1, 0, std::min(D, m - begin)));
  }
  return at::cat(blocks, 1).to(like.options());
}

at::Tensor map_features(const ScoreSpec& spec,
                        const at::Tensor& x,
                        const AttentionParameters& parameters,
                        bool is_query) {
  const bool is_shifted = is_query && (spec.denominator == Denominator::kSum ||
                                       spec.denominator == Denominator::kDetachedSum);
  switch (spec.map) {
    case Map::kIdentity:
      return x * scale_of(spec, x);
    case Map::kEluPlusOne:
      return at::elu(project(x, parameters)) + 1;
    case Map::kRelu:
      return project(x, parameters).relu();
    case Map::kExp: {
      at::Tensor z = x * spec.temperature;
      if (is_shifted) z = z - z.detach().amax(-1, /*keepdim=*/true);
      return z.exp();
    }
    case Map::kHedgehog:
      return hedgehog_features(spec, project(x, parameters));
    case Map::kFavor:
      return random_features(spec, x * scale_of(spec, x), parameters, is_shifted);
    case Map::kTaylor:
      return taylor_features(spec, x * scale_of(spec, x));
    case Map::kLimit:
      return limit_features(spec, x * scale_of(spec, x));
    case Map::kRandomTaylor: {
      // Half of each estimate of e^s: the Taylor part bounds what a bad draw can do.
      const at::Tensor scaled = x * scale_of(spec, x);
      return at::cat({taylor_features(spec, scaled),
                      random_features(spec, scaled, parameters, /*is_shifted=*/false)},
                     -1) /
             std::numbers::sqrt2;
    }
    case Map::kCosine:
      return x / x.norm(2, -1, true).clamp_min(kNormEpsilon);
    case Map::kCosFormer:
      return cosformer_features(x);
  }
  return {};
}

at::Tensor attention_weights(const at::Tensor& q,
                             const at::Tensor& k,
                             const ScoreSpec& spec,
                             const AttentionParameters& parameters) {
  spec.validate();
  check_gate(spec.input_gate, parameters.input_gate, spec, "input_gate");
  check_gate(spec.output_gate, parameters.output_gate, spec, "output_gate");
  const at::Tensor seen = seen_keys(q, k, spec, parameters);
  at::Tensor weights = is_softmax(spec)
                           ? masked_exponents(q, k, spec, seen).softmax(-1)
                           : divided(masked_scores(q, k, spec, parameters, seen), spec, seen);
  if (spec.input_gate) weights = weights * parameters.input_gate.unsqueeze(-2);
  if (spec.output_gate) weights = weights * parameters.output_gate.unsqueeze(-1);
  return weights;
}

at::Tensor apply_norm(OutputNorm norm, const at::Tensor& y) {
  switch (norm) {
    case OutputNorm::kNone:
      break;
    case OutputNorm::kL2:
      return y / y.norm(2, -1, true).clamp_min(kNormEpsilon);
    case OutputNorm::kRms:
      return y * (y.square().mean(-1, true) + kVarianceEpsilon).rsqrt();
    case OutputNorm::kLayer:
      return at::layer_norm(y, {y.size(-1)}, {}, {}, kVarianceEpsilon);
  }
  return y;
}

at::Tensor score_attention(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           const ScoreSpec& spec,
                           const AttentionParameters& parameters) {
  return apply_norm(spec.norm, at::matmul(attention_weights(q, k, spec, parameters), v));
}

double mean_entropy(const at::Tensor& weights) {
  const c10::NoGradGuard no_grad;
  const at::Tensor positive = weights.clamp_min(0);
  const at::Tensor p = positive / positive.sum(-1, true).clamp_min(kNormEpsilon);
  return -(p * p.clamp_min(1e-30).log()).sum(-1).mean().item<double>();
}

}  // namespace hedgerow::worker::laboratory
