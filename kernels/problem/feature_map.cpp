#include "kernels/problem/feature_map.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/maps/maps.hpp"
#include "kernels/problem/checks.hpp"
#include "kernels/problem/exponential_maps.hpp"

namespace hedgerow::kernels {
namespace {

// The activation of one sign of z, before the clamp.
at::Tensor activate(const at::Tensor& z, const FeatureMapOptions& options) {
  const auto of_tensor = [&](auto map) { return map.of_tensor(z, options.temperature); };
  const FeatureMapKind activation = options.row().activation;
  return maps::is_of_row(activation) ? maps::visit(of_tensor, activation, maps::OfRows{})
                                     : maps::visit(of_tensor, activation, maps::Elementwise{});
}

// Orthonormal vectors by Gram-Schmidt in fp64, each projected twice: once is not enough when two
// are nearly parallel. vectors: count rows of length `length`, count <= length.
void orthonormalize(double* vectors, std::int64_t count, std::int64_t length) {
  for (std::int64_t i = 0; i < count; ++i) {
    double* row = vectors + i * length;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t j = 0; j < i; ++j) {
        const double* other = vectors + j * length;
        double dot = 0;
        for (std::int64_t d = 0; d < length; ++d) {
          dot += row[d] * other[d];
        }
        for (std::int64_t d = 0; d < length; ++d) {
          row[d] -= dot * other[d];
        }
      }
    }
    double square = 0;
    for (std::int64_t d = 0; d < length; ++d) {
      square += row[d] * row[d];
    }
    for (std::int64_t d = 0; d < length; ++d) {
      row[d] /= std::sqrt(square);
    }
  }
}

at::Tensor orthogonal_start(const at::Tensor& noise) {
  const bool wide = noise.size(2) > noise.size(1);
  at::Tensor vectors = (wide ? noise : noise.transpose(1, 2)).contiguous().clone();
  for (std::int64_t h = 0; h < vectors.size(0); ++h) {
    orthonormalize(vectors[h].data_ptr<double>(), vectors.size(1), vectors.size(2));
  }
  return (wide ? vectors : vectors.transpose(1, 2)).to(at::kFloat).contiguous();
}

// Rows of Omega are the columns of the layer: blocks of at most D of them.
at::Tensor orthogonal_chi_start(const at::Tensor& noise) {
  const std::int64_t head_dim = noise.size(1), count = noise.size(2);
  at::Tensor vectors = noise.transpose(1, 2).contiguous();
  const at::Tensor lengths = vectors.square().sum(-1, true).sqrt_();
  for (std::int64_t h = 0; h < vectors.size(0); ++h) {
    for (std::int64_t first = 0; first < count; first += head_dim) {
      orthonormalize(
          vectors[h][first].data_ptr<double>(), std::min(head_dim, count - first), head_dim);
    }
  }
  return vectors.mul_(lengths).transpose(1, 2).to(at::kFloat).contiguous();
}

}  // namespace

void check_feature_map(const at::Tensor& x,
                       const FeatureMapWeights& weights,
                       const FeatureMapOptions& options,
                       std::int64_t num_heads) {
  TORCH_CHECK(x.dim() == 4,
              "feature map: x must be [B, heads, T, D], found a tensor of ",
              x.dim(),
              " dimensions");
  const std::int64_t head_dim = x.size(3);
  TORCH_CHECK(x.size(1) >= 1 && num_heads % x.size(1) == 0,
              "feature map: x's heads must divide ",
              num_heads,
              ", found ",
              x.size(1));
  TORCH_CHECK(
      x.is_floating_point(), "feature map: x must be of a floating dtype, found ", x.scalar_type());
  const at::Tensor &layer = weights.layer, &bias = weights.bias;
  TORCH_CHECK(!layer.defined() ||
                  (layer.dim() == 3 && layer.size(0) == num_heads && layer.size(1) == head_dim),
              "feature map: the layer must be [H, D, f] = [",
              num_heads,
              ", ",
              head_dim,
              ", f], found ",
              layer.sizes());
  const std::int64_t projected = layer.defined() ? layer.size(2) : head_dim;
  TORCH_CHECK(!bias.defined() ||
                  (bias.dim() == 2 && bias.size(0) == num_heads && bias.size(1) == projected),
              "feature map: the bias must be [H, f] = [",
              num_heads,
              ", ",
              projected,
              "], found ",
              bias.sizes());
  check_exponential_map("feature map: it", weights, options);
}

std::int64_t feature_dim(const FeatureMapWeights& weights,
                         const FeatureMapOptions& options,
                         std::int64_t head_dim) {
  const std::int64_t projected = weights.layer.defined() ? weights.layer.size(2) : head_dim;
  const FeatureMapRow& row = options.row();
  if (row.series) {
    return num_monomials(projected);
  }
  return row.negation && options.negation ? 2 * projected : projected;
}

at::Tensor apply_feature_map(const at::Tensor& x,
                             const FeatureMapWeights& weights,
                             const FeatureMapOptions& options,
                             std::int64_t num_heads,
                             FeatureMapRole role) {
  check_feature_map(x, weights, options, num_heads);
  const at::ScalarType dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor rows = x.to(dtype);
  if (x.size(1) != num_heads) {
    rows = rows.repeat_interleave(num_heads / x.size(1), 1);
  }
  at::Tensor z = rows;
  if (weights.layer.defined()) {
    z = at::matmul(z, weights.layer.to(dtype));
  }
  if (weights.bias.defined()) {
    z = z + weights.bias.to(dtype).unsqueeze(1);
  }
  const FeatureMapRow& row = options.row();
  if (row.one_draw) {
    return positive_random_features(z, rows, role);
  }
  if (row.series) {
    return taylor_features(z * exponential_map_scale(x.size(3)));
  }
  at::Tensor phi = activate(z, options);
  if (row.negation && options.negation) {
    phi = at::cat({phi, activate(-z, options)}, -1);
  }
  return row.clamped ? at::clamp_min(phi, kFeatureClamp) : phi;
}

at::Tensor start_feature_map(FeatureMapStart start, const at::Tensor& noise) {
  TORCH_CHECK(noise.dim() == 3 && noise.scalar_type() == at::kDouble && noise.is_cpu(),
              "feature map start: noise must be [H, D, f] float64 on the CPU, found ",
              noise.dim(),
              " dimensions of ",
              noise.scalar_type(),
              " on ",
              noise.device());
  switch (start) {
    case FeatureMapStart::kKaiming: {
      const double bound = std::sqrt(6.0 / static_cast<double>(noise.size(1) * noise.size(2)));
      return (noise * (2 * bound) - bound).to(at::kFloat);
    }
    case FeatureMapStart::kIdentity:
      return at::eye(noise.size(1), noise.size(2), at::kFloat).expand(noise.sizes()).contiguous();
    case FeatureMapStart::kOrthogonal:
      return orthogonal_start(noise);
    case FeatureMapStart::kGaussian:
      return noise.to(at::kFloat).contiguous();
    case FeatureMapStart::kOrthogonalChi:
      return orthogonal_chi_start(noise);
  }
  C10_THROW_ERROR(Error, c10::str("feature map start: unknown kind ", static_cast<int>(start)));
}

void redraw_feature_map(const FeatureMapWeights& weights,
                        FeatureMapStart start,
                        const at::Tensor& noise) {
  TORCH_CHECK(weights.layer.defined() && weights.layer.sizes() == noise.sizes(),
              "feature map redraw: noise must have the layer's shape ",
              weights.layer.defined() ? weights.layer.sizes() : at::IntArrayRef(),
              ", found ",
              noise.sizes());
  const c10::NoGradGuard no_grad;
  weights.layer.copy_(start_feature_map(start, noise));
}

}  // namespace hedgerow::kernels
