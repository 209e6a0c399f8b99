#include "worker/probe/probe.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "kernels/problem/checks.hpp"
#include "storage/base/error.hpp"
#include "worker/model/block_runner.hpp"
#include "worker/model/trained_parts.hpp"
#include "worker/probe/exponential_forms.hpp"
#include "worker/probe/head_sums.hpp"
#include "worker/transfer/attention_rows.hpp"

namespace hedgerow::worker {
namespace {

constexpr double kSmallest = 1e-12;

// Maps without parameters that need none, over all keys that a query sees.
struct SimpleMap {
  const char* name;
  kernels::FeatureMapOptions options;
};
const std::vector<SimpleMap>& simple_maps() {
  using kernels::FeatureMapKind;
  static const std::vector<SimpleMap> maps = {
      {"elu_plus_one", {.feature_map = FeatureMapKind::kEluPlusOne, .negation = false}},
      {"relu", {.feature_map = FeatureMapKind::kRelu, .negation = false}},
      {"exp(x)", {.feature_map = FeatureMapKind::kExp, .negation = false, .temperature = 1.0}},
      {"exp(2x)", {.feature_map = FeatureMapKind::kExp, .negation = false, .temperature = 2.0}},
      {"taylor", {.feature_map = FeatureMapKind::kTaylor, .negation = false}},
  };
  return maps;
}

// The mean over the rows of x [H, R] that are not NaN; NaN where none is.
at::Tensor mean_over_rows(const at::Tensor& x) { return x.to(at::kDouble).nanmean(-1).cpu(); }

// Ranks along the last dimension, from 0 on, of the entries that count; equal ones share their
// mean. x, counts [R, T].
at::Tensor ranks_of(const at::Tensor& x, const at::Tensor& counts) {
  const at::Tensor value = x.masked_fill(counts.logical_not(), INFINITY);
  const auto [sorted, order] = value.sort(-1);
  const at::Tensor low = at::searchsorted(sorted, value.contiguous(), false, false);
  const at::Tensor high = at::searchsorted(sorted, value.contiguous(), false, true);
  return (low + high - 1).to(at::kDouble) / 2.0;
}

at::Tensor score_rows(const at::Tensor& q,
                      const at::Tensor& k,
                      const std::vector<std::int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::kLong).to(q.device());
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(2)));
  const at::Tensor keys = k.to(at::kFloat).repeat_interleave(q.size(0) / k.size(0), 0);
  return at::matmul(q.index_select(1, index).to(at::kFloat) * scale, keys.transpose(-1, -2));
}

at::Tensor features_of_keys(const at::Tensor& k,
                            const kernels::HybridParameters& parameters,
                            const kernels::HybridOptions& options,
                            std::int64_t num_heads) {
  const std::int64_t key_heads = kernels::num_key_heads(parameters, num_heads);
  return kernels::apply_feature_map(k.unsqueeze(0),
                                    parameters.k,
                                    options,
                                    key_heads,
                                    kernels::FeatureMapRole::kKey)[0]
      .repeat_interleave(num_heads / key_heads, 0);
}

void add_exponential_forms(const RandomFeatureNeeds& needs,
                           const SeriesFigures& series,
                           HeadSums& sums) {
  sums.add("favor/norms", "apart_mean", needs.apart_mean);
  sums.most("favor/norms", "apart_max", needs.apart_max);
  sums.add("favor/norms", "sum_mean", needs.sum_mean);
  sums.most("favor/norms", "sum_max", needs.sum_max);
  sums.add("favor", "log10_features", needs.log10_features);
  sums.add("series", "error_of_order", series.error_of_order);
  sums.add("series", "rows_of_order", series.rows_of_order);
}

class LayerProbe {
 public:
  LayerProbe(const std::optional<kernels::HybridParameters>& maps,
             const kernels::HybridOptions& options)
      : maps_(maps), options_(options) {}

  // The mean of the softmax's look_back over the heads, of one sequence's q and k [1, ...]: a small
  // part of what look() costs.
  [[nodiscard]] static double look_back(const Qkv& qkv) {
    const std::vector<std::int64_t> rows = sampled_rows(qkv.q.size(2));
    const at::Tensor softmax = teacher_rows(qkv.q[0], qkv.k[0], rows);
    return weight_figures(softmax, rows).look_back.mean().item<double>();
  }

  // All figures of one sequence's q, k, v [1, ...]. Returns look_back().
  double look(const Qkv& qkv, HeadSums& sums) const {
    const at::Tensor q = qkv.q[0], k = qkv.k[0], v = qkv.v[0];
    const std::vector<std::int64_t> rows = sampled_rows(q.size(1));
    const at::Tensor softmax = teacher_rows(q, k, rows), scores = score_rows(q, k, rows);
    const at::Tensor seen =
        softmax.new_ones({softmax.size(1), softmax.size(2)}, at::kBool)
            .logical_and(at::arange(softmax.size(2), at::kLong)
                             .to(q.device())
                             .unsqueeze(0)
                             .le(at::tensor(rows, at::kLong).to(q.device()).unsqueeze(1)));
    const WeightFigures own = weight_figures(softmax, rows);
    sums.add("softmax", "entropy", own.entropy);
    sums.add("softmax", "look_back", own.look_back);
    for (const SimpleMap& map : simple_maps()) {
      kernels::HybridOptions linear;
      linear.window = kernels::WindowLayout::kNone;
      linear.set_map(map.options);
      const at::Tensor weights = student_rows(q, k, {}, linear, rows).linear;
      const std::string group = std::string("maps/") + map.name;
      sums.add(group, "entropy", weight_figures(weights, rows).entropy);
      sums.add(group, "monotonicity", monotonicity(weights, scores, seen));
      sums.add(group, "kl", divergence(softmax, weights));
    }
    add_exponential_forms(
        random_feature_needs(q, k, rows, scores, seen), series_figures(scores, seen), sums);
    if (maps_) look_at_student(q, k, v, rows, softmax, scores, sums);
    return own.look_back.mean().item<double>();
  }

 private:
  void look_at_student(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       const std::vector<std::int64_t>& rows,
                       const at::Tensor& softmax,
                       const at::Tensor& scores,
                       HeadSums& sums) const {
    const StudentRows student = student_rows(q, k, *maps_, options_, rows);
    const at::Tensor weights = student.window + student.linear;
    const std::int64_t H = q.size(0), T = k.size(1);
    const std::int64_t sinks = std::min(options_.num_sinks, T);
    const auto add = [&](const char* name, const at::Tensor& value) {
      sums.add("student", name, value);
    };
    add("entropy", weight_figures(weights, rows).entropy);
    add("kl", divergence(softmax, weights));
    const at::Tensor linear_keys = keys_of_linear_branch(T, rows, q.device());
    add("monotonicity", monotonicity(student.linear, scores, linear_keys));
    const at::Tensor values = v.to(at::kFloat).repeat_interleave(H / v.size(0), 0);
    const at::Tensor truth = at::matmul(softmax, values), found = at::matmul(weights, values);
    add("relative_error",
        ((found - truth).square().sum({1, 2}) / truth.square().sum({1, 2})).to(at::kDouble).cpu());
    const auto share = [](const at::Tensor& of) { return mean_over_rows(of.sum(-1)); };
    add("sinks", share(student.window.narrow(2, 0, sinks)));
    add("window", share(student.window.narrow(2, sinks, T - sinks)));
    add("linear", share(student.linear));
    const at::Tensor phi_k = features_of_keys(k, *maps_, options_, H);
    add("effective_rank", effective_rank(phi_k));
    add("dead_features", dead_features(phi_k));
    sums.least("student", "least_mass", least_mass(q, phi_k, rows, linear_keys));
  }

  // [R, T]: the key lies before the query's window and is no sink.
  [[nodiscard]] at::Tensor keys_of_linear_branch(std::int64_t T,
                                                 const std::vector<std::int64_t>& rows,
                                                 const at::Device& device) const {
    const at::Tensor linear =
        at::zeros({static_cast<std::int64_t>(rows.size()), T}, at::TensorOptions(at::kBool));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::int64_t begin =
          kernels::window_begin(options_.window, options_.window_size, rows[r]);
      const std::int64_t end = std::min(begin, T);
      if (end > options_.num_sinks)
        linear[static_cast<std::int64_t>(r)].slice(0, options_.num_sinks, end).fill_(true);
    }
    return linear.to(device);
  }

  // Over the queries that have linear keys, [H]; NaN where none has.
  [[nodiscard]] at::Tensor least_mass(const at::Tensor& q,
                                      const at::Tensor& phi_k,
                                      const std::vector<std::int64_t>& rows,
                                      const at::Tensor& linear_keys) const {
    const at::Tensor index = at::tensor(rows, at::kLong).to(q.device());
    const at::Tensor phi_q = kernels::apply_feature_map(q.index_select(1, index).unsqueeze(0),
                                                        maps_->q,
                                                        options_,
                                                        q.size(0),
                                                        kernels::FeatureMapRole::kQuery)[0];
    const at::Tensor mass =
        (at::matmul(phi_q, phi_k.transpose(-1, -2)) * linear_keys.to(phi_q.scalar_type())).sum(-1);
    const at::Tensor none = linear_keys.any(-1).logical_not();
    const at::Tensor least = mass.masked_fill(none, INFINITY).amin(-1).to(at::kDouble).cpu();
    return at::where(least.isinf(), at::full_like(least, NAN), least);
  }

  const std::optional<kernels::HybridParameters>& maps_;
  const kernels::HybridOptions& options_;
};

std::optional<kernels::HybridParameters> maps_on_device(const ProbeOptions& options, int layer) {
  if (options.student == nullptr) return std::nullopt;
  std::optional<kernels::HybridParameters> maps =
      options.student->layers.at(static_cast<std::size_t>(layer));
  if (!maps) return std::nullopt;
  for (const TrainedPart& part : parts_of(*maps, layer))
    *part.value = part.value->to(options.device);
  return maps;
}

// The last layer that the options ask for. Throws kUsage.
int last_layer(const ProbeOptions& options, int num_layers) {
  if (options.layers.empty()) return num_layers - 1;
  int last = 0;
  for (const int layer : options.layers) {
    if (layer < 0 || layer >= num_layers)
      throw storage::Error(storage::ErrorKind::kUsage,
                           "--layers " + std::to_string(layer) + ": the model has layers 0 to " +
                               std::to_string(num_layers - 1));
    last = std::max(last, layer);
  }
  for (const LayerAndHead& chosen : options.corners) last = std::max(last, chosen.first);
  return last;
}

// Hidden states [1, T, M] of each.
std::vector<at::Tensor> embedded(const storage::TokenSequences& tokens,
                                 const std::vector<std::int64_t>& sequences,
                                 const OuterWeights& outer,
                                 const at::Device& device) {
  std::vector<at::Tensor> streams;
  for (const std::int64_t sequence : sequences) {
    const auto ids = tokens.sequence(sequence);
    const at::Tensor input = at::empty({1, static_cast<std::int64_t>(ids.size())}, at::kLong);
    std::copy(ids.begin(), ids.end(), input.data_ptr<std::int64_t>());
    streams.push_back(embed(input.to(device), outer.embed_tokens));
  }
  return streams;
}

void add_corners(const Qkv& qkv,
                 const std::set<LayerAndHead>& chosen,
                 int layer,
                 std::int64_t sequence,
                 const std::optional<kernels::HybridParameters>& maps,
                 const kernels::HybridOptions& options,
                 nlohmann::json& corners) {
  for (const auto& [of_layer, head] : chosen) {
    if (of_layer != layer) continue;
    nlohmann::json of_head = {{"layer", layer}, {"head", head}, {"sequence", sequence}};
    of_head.update(attention_corners(qkv, head, maps, options));
    corners.push_back(std::move(of_head));
  }
}

// sums: of each sequence, over so many layers.
nlohmann::json mean_look_back(const std::vector<std::int64_t>& sequences,
                              const std::vector<double>& sums,
                              std::size_t num_layers) {
  nlohmann::json by_sequence = nlohmann::json::array();
  for (std::size_t i = 0; i < sequences.size(); ++i)
    by_sequence.push_back(
        {{"sequence", sequences[i]}, {"look_back", sums[i] / static_cast<double>(num_layers)}});
  return by_sequence;
}

}  // namespace

WeightFigures weight_figures(const at::Tensor& weights, const std::vector<std::int64_t>& rows) {
  const at::Tensor a = weights.to(at::kDouble);
  const at::Tensor query = at::tensor(rows, at::kLong).to(a.device()).unsqueeze(1);
  const at::Tensor distance = query - at::arange(a.size(2), query.options()).unsqueeze(0);
  return {.entropy = mean_over_rows(-(a * a.clamp_min(kSmallest).log()).sum(-1)),
          .look_back = mean_over_rows((a * distance).sum(-1))};
}

at::Tensor divergence(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor p = a.to(at::kDouble), of = b.to(at::kDouble).clamp_min(kSmallest);
  return mean_over_rows((p * (p.clamp_min(kSmallest).log() - of.log())).sum(-1));
}

at::Tensor monotonicity(const at::Tensor& weights,
                        const at::Tensor& scores,
                        const at::Tensor& counts) {
  constexpr std::int64_t kFewestKeys = 3;
  const at::Tensor number = counts.sum(-1).to(at::kDouble);  // [R]
  const at::Tensor enough = number.ge(kFewestKeys);
  std::vector<at::Tensor> heads;
  for (std::int64_t h = 0; h < weights.size(0); ++h) {
    const at::Tensor x = ranks_of(weights[h], counts), y = ranks_of(scores[h], counts);
    const auto centred = [&](const at::Tensor& ranks) {
      const at::Tensor kept = ranks.masked_fill(counts.logical_not(), 0.0);
      const at::Tensor mean = kept.sum(-1, true) / number.clamp_min(1.0).unsqueeze(1);
      return (ranks - mean).masked_fill(counts.logical_not(), 0.0);
    };
    const at::Tensor u = centred(x), w = centred(y);
    const at::Tensor norm = (u.square().sum(-1) * w.square().sum(-1)).sqrt();
    heads.push_back(((u * w).sum(-1) / norm).masked_fill(enough.logical_not(), NAN));
  }
  return mean_over_rows(at::stack(heads));
}

at::Tensor effective_rank(const at::Tensor& phi) {
  // Of the Gram matrix, whose eigenvalues are the squared singular values.
  const at::Tensor x = phi.to(at::kDouble);
  const at::Tensor values = at::linalg_eigvalsh(at::matmul(x.transpose(-1, -2), x)).clamp_min(0.0);
  const at::Tensor share = values / values.sum(-1, true).clamp_min(kSmallest);
  return (-(share * share.clamp_min(kSmallest).log()).sum(-1)).exp().cpu();
}

at::Tensor dead_features(const at::Tensor& phi) {
  constexpr double kAlive = 1e-3;
  const at::Tensor mean = phi.to(at::kDouble).abs().mean(1);
  return mean.lt(kAlive * mean.mean(-1, true)).to(at::kDouble).mean(-1).cpu();
}

nlohmann::json probe_attention(const storage::ModelDirectory& model,
                               const storage::TokenSequences& tokens,
                               const std::vector<std::int64_t>& sequences,
                               const ProbeOptions& options) {
  const c10::NoGradGuard no_grad;
  const int num_layers = model.config().num_hidden_layers;
  const int last = last_layer(options, num_layers);
  const LoadHooks hooks{[] {},
                        [&](int layer, const storage::Hash128& hash) {
                          if (options.student != nullptr)
                            options.student->require_teacher(model, layer, hash);
                        }};
  const OuterWeights outer = load_outer(model, options.compute_dtype, options.device, hooks);
  const RopeTable rope = make_rope_table(model.config(), tokens.seq_len, options.device);
  std::vector<at::Tensor> streams = embedded(tokens, sequences, outer, options.device);
  nlohmann::json layers = nlohmann::json::array(), corners = nlohmann::json::array();
  std::vector<double> look_back(sequences.size());  // sums over the probed layers
  const std::size_t measured = options.max_measured > 0
                                   ? std::min(sequences.size(), options.max_measured)
                                   : sequences.size();
  const kernels::HybridOptions none;
  for (int layer = 0; layer <= last; ++layer) {
    LayerWeights weights = load_layer(model, layer, options.compute_dtype, options.device, hooks);
    pack_layer(weights, tokens.seq_len);
    const BlockRunner runner(model.config(), layer, {std::move(weights)}, options.compute_dtype);
    const bool is_probed = options.layers.empty() || options.layers.contains(layer);
    const auto maps = maps_on_device(options, layer);
    const kernels::HybridOptions& hybrid =
        options.student != nullptr ? options.student->options : none;
    const LayerProbe probe(maps, hybrid);
    HeadSums sums;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      streams[i] = runner.run(streams[i], rope, [&](int /*layer*/, const Qkv& qkv) {
        if (is_probed)
          look_back[i] += i < measured ? probe.look(qkv, sums) : LayerProbe::look_back(qkv);
        if (i == 0) add_corners(qkv, options.corners, layer, sequences[i], maps, hybrid, corners);
        return teacher_attention(qkv);
      });
    }
    if (is_probed)
      layers.push_back(
          {{"layer", layer},
           {"heads",
            sums.heads(model.config().num_attention_heads, static_cast<double>(measured))}});
    if (options.progress) options.progress(layer + 1, last + 1);
  }
  nlohmann::json found = {{"sequences", measured},
                          {"seq_len", tokens.seq_len},
                          {"by_sequence", mean_look_back(sequences, look_back, layers.size())},
                          {"layers", std::move(layers)}};
  if (!options.corners.empty()) found["corners"] = std::move(corners);
  return found;
}

}  // namespace hedgerow::worker
