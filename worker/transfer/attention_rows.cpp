#include "worker/transfer/attention_rows.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/problem/checks.hpp"

namespace hedgerow::worker {
namespace {

constexpr std::int64_t kMaxRows = 64;
constexpr std::int64_t kMaxColumns = 64;
constexpr std::int64_t kMaxHeads = 8;
// Keys whose features are in memory at once; a Taylor map may have thousands of each key.
constexpr std::int64_t kKeyTile = 512;

at::Tensor index_tensor(const std::vector<std::int64_t>& values, const at::Device& device) {
  return at::tensor(values, at::kLong).to(device);
}

// x [H, R, X] by y [K, T, X], whose head k serves H / K heads of x -> x_i.y_j [H, R, T].
at::Tensor products(const at::Tensor& x, const at::Tensor& y) {
  const std::int64_t K = y.size(0), group = x.size(0) / K, R = x.size(1);
  const at::Tensor stacked = x.unflatten(0, {K, group}).flatten(1, 2);
  return at::matmul(stacked, y.transpose(-1, -2)).unflatten(1, {group, R}).flatten(0, 1);
}

// q_i.k_j / sqrt(D) in fp32.
at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const at::Tensor& rows) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(2)));
  return products(q.index_select(1, rows).to(at::kFloat).mul(scale), k.to(at::kFloat));
}

// [R, T]: key j is later than query i.
at::Tensor later_keys(const at::Tensor& rows, std::int64_t T) {
  return at::arange(T, rows.options()).unsqueeze(0).gt(rows.unsqueeze(1));
}

// phi_q(q_i).phi_k(k_j) [H, R, T], causal or not.
at::Tensor feature_products(const at::Tensor& q,
                            const at::Tensor& k,
                            const kernels::HybridParameters& parameters,
                            const kernels::FeatureMapOptions& map,
                            const at::Tensor& rows) {
  const std::int64_t H = q.size(0), T = k.size(1);
  const std::int64_t key_heads = kernels::num_key_heads(parameters, H);
  const at::Tensor phi_q = kernels::apply_feature_map(q.index_select(1, rows).unsqueeze(0),
                                                      parameters.q,
                                                      map,
                                                      H,
                                                      kernels::FeatureMapRole::kQuery)[0];
  std::vector<at::Tensor> tiles;
  for (std::int64_t begin = 0; begin < T; begin += kKeyTile) {
    const at::Tensor keys = k.narrow(1, begin, std::min(kKeyTile, T - begin)).unsqueeze(0);
    const at::Tensor phi_k = kernels::apply_feature_map(
        keys, parameters.k, map, key_heads, kernels::FeatureMapRole::kKey)[0];
    tiles.push_back(products(phi_q, phi_k));
  }
  return at::cat(tiles, 2).to(at::kFloat);
}

// [H, R, T] on the CPU -> keys summed into at most kMaxColumns columns of nearly equal width.
at::Tensor pooled(const at::Tensor& weights) {
  const std::int64_t T = weights.size(2), columns = std::min(kMaxColumns, T);
  const at::Tensor column_of_key = at::arange(T).mul(columns).floor_divide(T);
  return at::zeros({weights.size(0), weights.size(1), columns})
      .index_add_(2, column_of_key, weights);
}

at::Tensor as_bytes(const at::Tensor& weights) {
  const at::Tensor brightness = at::log10(weights.clamp_min(1e-4)).div(4.0).add(1.0).clamp(0, 1);
  return brightness.mul(255.0).round().to(at::kByte).contiguous();
}

std::string base64(std::span<const std::uint8_t> bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t three = 0;
    for (std::size_t j = 0; j < 3; ++j) three = three << 8 | (j < count ? bytes[i + j] : 0U);
    for (std::size_t j = 0; j < 4; ++j)
      text += j <= count ? kDigits[three >> (18 - 6 * j) & 63U] : '=';
  }
  return text;
}

}  // namespace

std::vector<std::int64_t> sampled_rows(std::int64_t T) {
  const std::int64_t count = std::min(kMaxRows, T);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 1; i <= count; ++i) rows.push_back(i * T / count - 1);
  return rows;
}

at::Tensor teacher_rows(const at::Tensor& q,
                        const at::Tensor& k,
                        const std::vector<std::int64_t>& rows) {
  const c10::NoGradGuard no_grad;
  const at::Tensor queries = index_tensor(rows, q.device());
  return at::softmax(scores(q, k, queries).masked_fill_(later_keys(queries, k.size(1)), -INFINITY),
                     -1);
}

StudentRows student_rows(const at::Tensor& q,
                         const at::Tensor& k,
                         const kernels::HybridParameters& parameters,
                         const kernels::HybridOptions& options,
                         const std::vector<std::int64_t>& rows) {
  const c10::NoGradGuard no_grad;
  kernels::check_problem(q.unsqueeze(0), k.unsqueeze(0), {}, parameters, options);
  const bool windowed = options.window != kernels::WindowLayout::kNone;
  const std::int64_t T = k.size(1);
  std::vector<std::int64_t> first_keys;
  for (const std::int64_t row : rows)
    first_keys.push_back(kernels::window_begin(options.window, options.window_size, row));
  const at::Tensor queries = index_tensor(rows, q.device());
  const at::Tensor begins = index_tensor(first_keys, q.device()).unsqueeze(1);
  const at::Tensor keys = at::arange(T, queries.options()).unsqueeze(0);
  const at::Tensor later = later_keys(queries, T);
  const at::Tensor inside = keys.ge(begins).logical_or(keys.lt(options.num_sinks));

  StudentRows student;
  student.linear = feature_products(q, k, parameters, options, queries)
                       .masked_fill_(inside.logical_or(later), 0.0);
  at::Tensor denominator = student.linear.sum(-1, true);
  if (windowed) {
    const at::Tensor s =
        scores(q, k, queries).masked_fill_(inside.logical_not().logical_or(later), -INFINITY);
    std::vector<float> gains;
    for (const std::int64_t row : rows) gains.push_back(kernels::window_gain(options, row));
    const at::Tensor g = at::sigmoid(parameters.window_factors.to(at::kFloat)).reshape({-1, 1, 1}) *
                         at::tensor(gains).to(q.device()).unsqueeze(1);
    student.window = at::exp(s - at::amax(s, -1, true)).mul_(g);
    denominator = denominator + student.window.sum(-1, true);
  } else {
    student.window = at::zeros_like(student.linear);
    denominator = denominator + kernels::kLinearEpsilon;
  }
  student.window.div_(denominator);
  student.linear.div_(denominator);
  return student;
}

AttentionShares attention_shares(const StudentRows& student, std::int64_t num_sinks) {
  const auto share = [](const at::Tensor& weights) {
    return weights.sum(-1, false, at::kDouble).mean().item<double>();
  };
  const std::int64_t T = student.window.size(2), sinks = std::min(num_sinks, T);
  return {.window = share(student.window.narrow(2, sinks, T - sinks)),
          .sinks = share(student.window.narrow(2, 0, sinks)),
          .linear = share(student.linear)};
}

std::vector<nlohmann::json> attention_maps(const at::Tensor& softmax, const at::Tensor& student) {
  const std::int64_t H = softmax.size(0), count = std::min(kMaxHeads, H);
  std::vector<std::int64_t> heads;
  for (std::int64_t i = 0; i < count; ++i) heads.push_back(i * H / count);
  const at::Tensor chosen = index_tensor(heads, softmax.device());
  // On the CPU, where sums into columns have one order.
  const auto bytes = [&](const at::Tensor& weights) {
    return as_bytes(pooled(weights.index_select(0, chosen).cpu()));
  };
  const at::Tensor of_softmax = bytes(softmax), of_student = bytes(student);
  const auto text = [](const at::Tensor& map) {
    return base64({map.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(map.numel())});
  };
  std::vector<nlohmann::json> maps;
  for (std::int64_t i = 0; i < count; ++i) {
    maps.push_back({{"head", heads[static_cast<std::size_t>(i)]},
                    {"rows", of_softmax.size(1)},
                    {"columns", of_softmax.size(2)},
                    {"softmax", text(of_softmax[i])},
                    {"student", text(of_student[i])}});
  }
  return maps;
}

}  // namespace hedgerow::worker
