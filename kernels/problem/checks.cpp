#include "kernels/problem/checks.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>

#include "kernels/problem/exponential_maps.hpp"

namespace hedgerow::kernels {
namespace {

void check_dtype(const char* name, const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble,
              "attention: ",
              name,
              " must be float32 or bfloat16, found ",
              dtype);
}

void check_like_q(const char* name, const at::Tensor& x, const at::Tensor& q) {
  TORCH_CHECK(
      x.dim() == 4, "attention: ", name, " must be [B, G, T, D], found ", describe(x.sizes()));
  TORCH_CHECK(x.size(0) == q.size(0) && x.size(2) == q.size(2) && x.size(3) == q.size(3),
              "attention: ",
              name,
              " must have q's batch, tokens and head_dim, expected [",
              q.size(0),
              ", G, ",
              q.size(2),
              ", ",
              q.size(3),
              "], found ",
              describe(x.sizes()));
  TORCH_CHECK(x.size(1) >= 1 && q.size(1) % x.size(1) == 0,
              "attention: the number of heads of ",
              name,
              " must divide q's ",
              q.size(1),
              ", found ",
              x.size(1));
  TORCH_CHECK(x.scalar_type() == q.scalar_type(),
              "attention: ",
              name,
              " must have q's dtype ",
              q.scalar_type(),
              ", found ",
              x.scalar_type());
  TORCH_CHECK(x.device() == q.device(),
              "attention: ",
              name,
              " must be on q's device ",
              q.device(),
              ", found ",
              x.device());
}

void check_parameter(const std::string& name, const at::Tensor& x, const at::Device& device) {
  TORCH_CHECK(x.is_floating_point(),
              "attention: ",
              name,
              " must be of a floating dtype, found ",
              x.scalar_type());
  TORCH_CHECK(x.device() == device,
              "attention: ",
              name,
              " must be on q's device ",
              device,
              ", found ",
              x.device());
}

std::int64_t check_map(const std::string& side,
                       const FeatureMapWeights& weights,
                       const FeatureMapOptions& options,
                       const char* heads,
                       std::int64_t num_heads,
                       std::int64_t head_dim,
                       const at::Device& device) {
  const at::Tensor &layer = weights.layer, &bias = weights.bias;
  if (layer.defined()) {
    TORCH_CHECK(layer.dim() == 3 && layer.size(0) == num_heads && layer.size(1) == head_dim &&
                    layer.size(2) >= 1,
                "attention: the ",
                side,
                " map's layer must be [",
                heads,
                ", D, f] = [",
                num_heads,
                ", ",
                head_dim,
                ", f], found ",
                describe(layer.sizes()));
    check_parameter("the " + side + " map's layer", layer, device);
  }
  const std::int64_t projected = layer.defined() ? layer.size(2) : head_dim;
  if (bias.defined()) {
    TORCH_CHECK(bias.dim() == 2 && bias.size(0) == num_heads && bias.size(1) == projected,
                "attention: the ",
                side,
                " map's bias must be [",
                heads,
                ", f] = [",
                num_heads,
                ", ",
                projected,
                "], found ",
                describe(bias.sizes()));
    check_parameter("the " + side + " map's bias", bias, device);
  }
  check_exponential_map("attention: the " + side + " map", weights, options);
  return feature_dim(weights, options, head_dim);
}

}  // namespace

std::string describe(at::IntArrayRef sizes) {
  std::string text = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  }
  return text + "]";
}

AttentionShape check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() == 4, "attention: q must be [B, H, T, D], found ", describe(q.sizes()));
  constexpr std::array kHeld{"sequence", "head", "token", "component a head"};
  for (std::size_t i = 0; i < kHeld.size(); ++i) {
    TORCH_CHECK(q.size(static_cast<std::int64_t>(i)) >= 1,
                "attention: q must hold at least one ",
                kHeld[i],
                ", found ",
                describe(q.sizes()));
  }
  check_dtype("q", q);
  check_like_q("k", k, q);
  if (v.defined()) {
    check_like_q("v", v, q);
    TORCH_CHECK(v.size(1) == k.size(1),
                "attention: v must have k's ",
                k.size(1),
                " heads, found ",
                v.size(1));
  }
  return shape_of(q, k);
}

std::int64_t num_key_heads(const HybridParameters& parameters, std::int64_t num_heads) {
  const FeatureMapWeights& map = parameters.k;
  if (map.layer.defined() && map.layer.dim() > 0) return map.layer.size(0);
  return map.bias.defined() && map.bias.dim() > 0 ? map.bias.size(0) : num_heads;
}

std::int64_t num_query_heads(const HybridParameters& parameters, std::int64_t otherwise) {
  if (parameters.window_factors.defined()) return parameters.window_factors.numel();
  const FeatureMapWeights& map = parameters.q;
  if (map.layer.defined() && map.layer.dim() > 0) return map.layer.size(0);
  return map.bias.defined() && map.bias.dim() > 0 ? map.bias.size(0) : otherwise;
}

void check_options(const HybridOptions& options) {
  const std::string reason = why_not(options);
  TORCH_CHECK(reason.empty(), "attention.", reason);
}

AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k) {
  return {q.size(0), q.size(1), k.size(1), q.size(2), q.size(3)};
}

std::int64_t check_parameters(const HybridParameters& parameters,
                              const HybridOptions& options,
                              std::int64_t num_heads,
                              std::int64_t num_kv_heads,
                              std::int64_t head_dim,
                              const at::Device& device) {
  check_options(options);
  const std::int64_t features =
      check_map("query", parameters.q, options, "H", num_heads, head_dim, device);
  const bool is_shared = num_key_heads(parameters, num_heads) == num_kv_heads;
  const std::int64_t key_features = check_map("key",
                                              parameters.k,
                                              options,
                                              is_shared ? "G" : "H or G",
                                              is_shared ? num_kv_heads : num_heads,
                                              head_dim,
                                              device);
  TORCH_CHECK(features == key_features,
              "attention: both maps must give as many features, found ",
              features,
              " for queries and ",
              key_features,
              " for keys");
  if (options.window == WindowLayout::kNone) {
    return features;
  }
  TORCH_CHECK(parameters.window_factors.defined(),
              "attention: window_factors must be defined with a window");
  TORCH_CHECK(parameters.window_factors.numel() == num_heads,
              "attention: window_factors must hold one logit a head [",
              num_heads,
              "], found ",
              describe(parameters.window_factors.sizes()));
  check_parameter("window_factors", parameters.window_factors, device);
  return features;
}

bool any_requires_grad(at::ArrayRef<at::Tensor> inputs) {
  return c10::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& x) {
           return x.defined() && x.requires_grad();
         });
}

at::Tensor present_or_empty(const at::Tensor& x) {
  return x.defined() ? x : at::empty({0}, at::kFloat);
}

at::Tensor undefined_if_empty(const at::Tensor& x) { return x.numel() == 0 ? at::Tensor() : x; }

void check_problem(const at::Tensor& q,
                   const at::Tensor& k,
                   const at::Tensor& v,
                   const HybridParameters& parameters,
                   const HybridOptions& options) {
  check_attention(q, k, v);
  check_parameters(parameters, options, q.size(1), k.size(1), q.size(3), q.device());
}

}  // namespace hedgerow::kernels
