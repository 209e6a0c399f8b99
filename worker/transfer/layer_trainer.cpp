#include "worker/transfer/layer_trainer.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention_transfer.hpp"
#include "kernels/transfer_loss.hpp"
#include "kernels/window_attention.hpp"
#include "storage/base/error.hpp"
#include "storage/base/philox.hpp"
#include "worker/model/linear_branch.hpp"
#include "worker/model/tensor_bytes.hpp"
#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

// Share of the teacher's energy by which a layer has to be behind its control: below it the two
// differ by rounding alone, as where the window holds every sequence.
constexpr double kRounding = 1e-6;

// fp64 noise of the start, of a map's shape [H, D, f]: each head's numbers come from a stream of
// their own, keyed by (seed, layer, draw, head). One draw serves both maps. A map that is never
// drawn again has draw 0 alone.
at::Tensor map_noise(storage::FeatureMapStart start,
                     at::IntArrayRef sizes,
                     std::uint64_t seed,
                     int layer_idx,
                     std::uint32_t draw) {
  const at::Tensor noise = at::empty(sizes, at::kDouble);
  const std::int64_t per_head = noise[0].numel();
  auto* out = noise.data_ptr<double>();
  for (std::int64_t head = 0; head < sizes[0]; ++head) {
    storage::PhiloxStream stream(
        seed, static_cast<std::uint32_t>(layer_idx), draw, static_cast<std::uint32_t>(head));
    for (std::int64_t i = 0; i < per_head; ++i) {
      *out++ = start == storage::FeatureMapStart::kKaiming ? stream.uniform() : stream.normal();
    }
  }
  return noise;
}

void copy_checked(const at::Tensor& target,
                  const std::map<std::string, storage::OwnedTensor>& tensors,
                  const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end())
    throw Error(ErrorKind::kCorrupt, "checkpoint: tensor " + name + " is missing");
  if (found->second.shape != target.sizes().vec()) {
    throw Error(ErrorKind::kCorrupt,
                "checkpoint: tensor " + name + " has another shape than the recipe's attention: " +
                    "expected " + c10::str(target.sizes()) + ", found " +
                    c10::str(at::IntArrayRef(found->second.shape)));
  }
  const c10::NoGradGuard no_grad;
  const_cast<at::Tensor&>(target).copy_(to_tensor(found->second));
}

kernels::HybridParameters as_parameters(const std::map<std::string, at::Tensor>& tensors) {
  const auto find = [&](const std::string& name) {
    const auto found = tensors.find(name);
    return found == tensors.end() ? at::Tensor() : found->second;
  };
  return {.q = {find("feature_map_q.mlp.layer"), find("feature_map_q.mlp.bias")},
          .k = {find("feature_map_k.mlp.layer"), find("feature_map_k.mlp.bias")},
          .window_factors = find("window_factors")};
}

}  // namespace

LayerTrainer::LayerTrainer(int layer_idx,
                           const storage::Recipe& recipe,
                           const storage::ModelConfig& config,
                           std::uint64_t seed,
                           const at::Device& device,
                           const std::string& student)
    : layer_idx_(layer_idx),
      student_(student.empty() ? "" : student + "."),
      transfer_(recipe.transfer),
      rates_(recipe.transfer),
      attention_(recipe.attention),
      seed_(seed),
      options_(recipe.attention.in_training()),
      learning_rate_(recipe.transfer.learning_rate) {
  options_.fp32_output = true;
  create_parameters(config, device);
  std::vector<at::Tensor> trained;
  for (const at::Tensor& tensor : tensors_) {
    best_.push_back(tensor.detach().clone());
    if (tensor.requires_grad()) trained.push_back(tensor);
  }
  optimizer_.emplace(std::move(trained), AdamWOptions{.weight_decay = transfer_.weight_decay});
}

void LayerTrainer::create_parameters(const storage::ModelConfig& config, const at::Device& device) {
  const storage::AttentionSpec& spec = attention_;
  const std::int64_t heads = config.num_attention_heads;
  const auto add = [this](const std::string& name, const at::Tensor& value, bool trained) {
    names_.push_back(name);
    tensors_.push_back(value.clone().set_requires_grad(trained));
    return tensors_.back();
  };
  at::Tensor start;
  if (spec.has_projection()) {
    const at::Tensor noise =
        map_noise(spec.start, {heads, config.head_dim, spec.projected_dim()}, seed_, layer_idx_, 0);
    start = kernels::start_feature_map(spec.start, noise).to(device);
  }
  const auto add_map = [&](const std::string& prefix, std::int64_t num_maps) {
    kernels::FeatureMapWeights map;
    if (spec.has_projection()) {
      // A kv head has the map of the first query head that it serves.
      const at::Tensor own = start.slice(0, 0, heads, heads / num_maps).contiguous();
      map.layer = add(prefix + "mlp.layer", own, spec.train_feature_map);
    }
    if (spec.bias) {
      const at::Tensor zeros =
          at::zeros({num_maps, spec.projected_dim()}, at::TensorOptions(at::kFloat).device(device));
      map.bias = add(prefix + "mlp.bias", zeros, spec.train_feature_map);
    }
    return map;
  };
  parameters_.q = add_map("feature_map_q.", heads);
  if (transfer_.tied_maps) {
    parameters_.k = parameters_.q;  // autograd adds up both uses
  } else {
    parameters_.k = add_map("feature_map_k.", spec.num_key_maps(heads, config.num_key_value_heads));
  }
  if (spec.window != storage::WindowLayout::kNone) {
    const at::Tensor factors =
        at::full({heads}, spec.window_factor, at::TensorOptions(at::kFloat).device(device));
    parameters_.window_factors = add("window_factors", factors, spec.train_window_factor);
  }
}

at::Tensor LayerTrainer::accumulate(const Qkv& qkv, double share, const at::Tensor& y_true) {
  const c10::AutoGradMode enable(true);
  const Stopwatch clock;
  const kernels::AttentionTransfer transfer = kernels::attention_transfer(qkv.q,
                                                                          qkv.k,
                                                                          qkv.v,
                                                                          parameters_,
                                                                          options_,
                                                                          kernels::Backend::kAuto,
                                                                          y_true);
  at::Tensor loss = transfer.loss * (transfer_.mse_factor * share);
  if (transfer_.xent_factor != 0.0) {
    loss = loss + kernels::transfer_cross_entropy(qkv.q, qkv.k, parameters_, options_) *
                      (transfer_.xent_factor * share);
  }
  if (!std::isfinite(loss.item<double>())) fail_not_finite("transfer loss", transfer.y_true);
  if (loss.requires_grad()) loss.backward();
  seconds_ += clock.seconds();
  return transfer.y_true;
}

void LayerTrainer::fail_not_finite(const std::string& what, const at::Tensor& y_true) const {
  const std::string layer = "layer " + std::to_string(layer_idx_);
  if (y_true.defined() && !at::isfinite(y_true).all().item<bool>()) {
    throw Error(
        ErrorKind::kCorrupt,
        layer + ": the teacher's attention output is not finite; check the model's weights");
  }
  throw Error(ErrorKind::kInternal,
              layer + ": the " + what + " is not finite after " +
                  std::to_string(optimizer_->num_steps()) +
                  " steps; lower transfer.learning_rate or retry with another seed");
}

void LayerTrainer::step() {
  const Stopwatch clock;
  gradient_norm_ = optimizer_->clip_gradients(transfer_.gradient_clip);
  if (!std::isfinite(gradient_norm_)) fail_not_finite("gradient", {});
  learning_rate_ = rate_after(optimizer_->num_steps(), learning_rate_, rates_);
  optimizer_->step(learning_rate_);
  const std::int64_t every = transfer_.redraw_every;
  if (every > 0 && optimizer_->num_steps() % every == 0) {
    redraw(static_cast<std::uint32_t>(optimizer_->num_steps() / every));
  }
  seconds_ += clock.seconds();
  ++steps_;
}

void LayerTrainer::redraw(std::uint32_t draw) {
  const at::Tensor noise =
      map_noise(attention_.start, parameters_.q.layer.sizes(), seed_, layer_idx_, draw);
  for (const kernels::FeatureMapWeights& map : {parameters_.q, parameters_.k}) {
    kernels::redraw_feature_map(map, attention_.start, noise);
  }
}

void LayerTrainer::validate(const Qkv& qkv, const at::Tensor& y_true) {
  const c10::NoGradGuard no_grad;
  const at::Tensor y_pred = kernels::hybrid_attention(qkv.q, qkv.k, qkv.v, parameters_, options_);
  const at::Tensor truth = y_true.to(at::kFloat);
  const auto batch = static_cast<double>(y_true.size(0));
  const auto squared_error = (y_pred - truth).square().sum(at::kDouble).item<double>();
  if (!std::isfinite(squared_error)) fail_not_finite("validation loss", y_true);
  sums_.squared_error += squared_error;
  sums_.energy += truth.square().sum(at::kDouble).item<double>();
  if (needs_control()) {
    const at::Tensor control = kernels::window_attention(qkv.q, qkv.k, qkv.v, options_);
    sums_.control_squared_error += (control - truth).square().sum(at::kDouble).item<double>();
  }
  sums_.linear_share +=
      kernels::linear_share(qkv.q, qkv.k, parameters_, options_).mean().item<double>() * batch;
  if (transfer_.xent_factor != 0.0) {
    sums_.cross_entropy +=
        kernels::transfer_cross_entropy(qkv.q, qkv.k, parameters_, options_).item<double>() * batch;
  }
  if (sums_.sequences == 0) {
    const at::Tensor q = qkv.q[0], k = qkv.k[0];
    sums_.shares = attention_shares(
        student_rows(q, k, parameters_, options_, sampled_rows(q.size(1))), options_.num_sinks);
  }
  sums_.elements += y_true.numel();
  sums_.sequences += y_true.size(0);
}

bool LayerTrainer::needs_control() const {
  return control_mse_ == 0.0 && options_.window != kernels::WindowLayout::kNone;
}

const LayerMetrics& LayerTrainer::finish_validation(std::int64_t step) {
  LayerMetrics metrics;
  metrics.layer = layer_idx_;
  metrics.step = step;
  metrics.mse = sums_.squared_error / static_cast<double>(sums_.elements);
  metrics.relative_mse = sums_.squared_error / sums_.energy;
  metrics.cross_entropy = sums_.cross_entropy / static_cast<double>(sums_.sequences);
  metrics.linear_share = sums_.linear_share / static_cast<double>(sums_.sequences);
  metrics.window_share = sums_.shares.window;
  metrics.sink_share = sums_.shares.sinks;
  if (parameters_.window_factors.defined()) {
    metrics.window_factor = parameters_.window_factors.detach().sigmoid().mean().item<double>();
  }
  metrics.gradient_norm = gradient_norm_;
  metrics.learning_rate = learning_rate_;
  // It depends on the teacher's q, k and v alone: whenever it is measured, it is the same.
  if (needs_control() && sums_.elements > 0)
    control_mse_ = sums_.control_squared_error / static_cast<double>(sums_.elements);
  metrics.control_mse = control_mse_;
  sums_ = {};
  const double loss =
      transfer_.mse_factor * metrics.mse + transfer_.xent_factor * metrics.cross_entropy;
  if (stopper_.update(loss, step)) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) best_[i] = tensors_[i].detach().clone();
  }
  if (transfer_.schedule == "plateau")
    learning_rate_ = plateau_.update(loss, learning_rate_, rates_);
  stopped_ = stopper_.should_stop(transfer_.early_stop_patience);
  history_.push_back(metrics);
  return history_.back();
}

const LayerMetrics& LayerTrainer::best_metrics() const {
  for (const LayerMetrics& metrics : history_) {
    if (metrics.step == stopper_.best_step) return metrics;
  }
  throw Error(ErrorKind::kInternal, "layer " + std::to_string(layer_idx_) + " was never validated");
}

nlohmann::json LayerTrainer::save(std::map<std::string, storage::OwnedTensor>& tensors) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors[prefix() + names_[i]] = to_owned(tensors_[i].detach());
    tensors[prefix() + names_[i] + ".best"] = to_owned(best_[i]);
  }
  for (std::size_t i = 0, trained = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].requires_grad()) continue;
    tensors[prefix() + names_[i] + ".exp_avg"] = to_owned(optimizer_->exp_avg()[trained]);
    tensors[prefix() + names_[i] + ".exp_avg_sq"] = to_owned(optimizer_->exp_avg_sq()[trained]);
    ++trained;
  }
  return {{"optimizer_steps", optimizer_->num_steps()},
          {"learning_rate", learning_rate_},
          {"gradient_norm", gradient_norm_},
          {"plateau", plateau_},
          {"stopper", stopper_},
          {"stopped", stopped_},
          {"control_mse", control_mse_},
          {"history", history_}};
}

void LayerTrainer::restore(const std::map<std::string, storage::OwnedTensor>& tensors,
                           const nlohmann::json& state) {
  for (std::size_t i = 0, trained = 0; i < tensors_.size(); ++i) {
    copy_checked(tensors_[i], tensors, prefix() + names_[i]);
    copy_checked(best_[i], tensors, prefix() + names_[i] + ".best");
    if (!tensors_[i].requires_grad()) continue;
    copy_checked(optimizer_->exp_avg()[trained], tensors, prefix() + names_[i] + ".exp_avg");
    copy_checked(optimizer_->exp_avg_sq()[trained], tensors, prefix() + names_[i] + ".exp_avg_sq");
    ++trained;
  }
  optimizer_->set_num_steps(state.at("optimizer_steps").get<std::int64_t>());
  state.at("learning_rate").get_to(learning_rate_);
  state.at("gradient_norm").get_to(gradient_norm_);
  state.at("plateau").get_to(plateau_);
  state.at("stopper").get_to(stopper_);
  state.at("stopped").get_to(stopped_);
  control_mse_ = state.value("control_mse", 0.0);  // of an earlier build: measured again
  state.at("history").get_to(history_);
}

bool LayerTrainer::is_behind_control() const {
  // Without a transfer the start is what the finetune trains: it is compared to nothing.
  if (control_mse_ == 0.0 || transfer_.max_steps == 0) return false;
  const LayerMetrics& best = best_metrics();
  if (best.mse <= control_mse_) return false;
  return best.relative_mse * (1.0 - control_mse_ / best.mse) > kRounding;
}

std::pair<std::map<std::string, at::Tensor>, bool> LayerTrainer::exported() const {
  std::map<std::string, at::Tensor> tensors;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    tensors[names_[i]] = best_[i].clone();
    constexpr std::string_view kOfQueries = "feature_map_q.";
    if (transfer_.tied_maps && names_[i].starts_with(kOfQueries))
      tensors["feature_map_k." + names_[i].substr(kOfQueries.size())] = best_[i].clone();
  }
  const bool is_untrained =
      is_behind_control() && switch_off_linear_branch(as_parameters(tensors), options_);
  return {std::move(tensors), is_untrained};
}

nlohmann::json LayerTrainer::result() const {
  LayerMetrics metrics = best_metrics();
  const double trained_mse = metrics.mse;
  const bool is_untrained = exported().second;
  if (is_untrained) {
    metrics.relative_mse *= control_mse_ / trained_mse;
    metrics.mse = control_mse_;
    metrics.linear_share = 0.0;
    // The share of the mean, not the mean of each row's share: the rows are gone.
    const double kept = metrics.window_share + metrics.sink_share;
    if (kept > 0.0) {
      metrics.window_share /= kept;
      metrics.sink_share /= kept;
    }
  }
  nlohmann::json result = metrics;
  result["stopped_early"] = stopped_;
  if (is_behind_control()) {
    result["trained_mse"] = trained_mse;
    result["kept_untrained"] = is_untrained;
  }
  return result;
}

std::vector<nlohmann::json> LayerTrainer::attention_maps(const Qkv& qkv) const {
  const at::Tensor q = qkv.q[0], k = qkv.k[0];
  const std::vector<std::int64_t> rows = sampled_rows(q.size(1));
  const StudentRows student = student_rows(q, k, as_parameters(exported().first), options_, rows);
  std::vector<nlohmann::json> maps =
      worker::attention_maps(teacher_rows(q, k, rows), student.window + student.linear);
  for (nlohmann::json& map : maps) {
    map["layer"] = layer_idx_;
    map["step"] = best_metrics().step;
  }
  return maps;
}

void LayerTrainer::export_best(std::map<std::string, storage::OwnedTensor>& tensors) const {
  const std::string attention = "model.layers." + std::to_string(layer_idx_) + ".self_attn.";
  for (const auto& [name, value] : exported().first) {
    const bool factors = name == "window_factors";
    tensors[attention + name] = to_owned(factors ? value.reshape({1, -1, 1, 1}) : value);
  }
}

}  // namespace hedgerow::worker
