#include "worker/finetune/trained_parameters.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "storage/base/error.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t numel = 1;
  for (const auto size : shape) numel *= size;
  return numel;
}

// What a squares() row has behind the modules.
constexpr std::array<std::string_view, 3> kOtherGroups = {"maps", "window_factors", "norms"};

const std::vector<std::string>& groups() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const storage::ModuleName& module : storage::module_names())
      names.emplace_back(module.name);
    names.insert(names.end(), kOtherGroups.begin(), kOtherGroups.end());
    return names;
  }();
  return all;
}

constexpr std::size_t kFactors = 2;  // A and B of a LoRA pair

// Calls use(key, value) for what of a layer's slots in a squares() row was ever changed.
template <typename Use>
void for_each_slot(std::span<const double> slots, const Use& use) {
  for (std::size_t group = 0; group < groups().size(); ++group) {
    for (std::size_t factor = 0; factor < kFactors; ++factor) {
      const double value = slots[group * kFactors + factor];
      const bool is_pair = group + kOtherGroups.size() < groups().size();
      if (value > 0.0) use(groups()[group] + (!is_pair ? "" : factor == 0 ? "/A" : "/B"), value);
    }
  }
}

std::size_t group_index(const std::string& group) {
  const auto found = std::ranges::find(groups(), group);
  TORCH_CHECK(found != groups().end(), "no group of trained parameters is called ", group);
  return static_cast<std::size_t>(found - groups().begin());
}

}  // namespace

TrainedParameters::TrainedParameters(const LoraAdapter& start,
                                     const std::vector<TrainedPart>& parts,
                                     const at::Device& device,
                                     double weight_decay) {
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  num_layers_ = start.layers.size();
  const auto add = [&](const std::string& name,
                       const std::string& group,
                       std::size_t layer,
                       const std::vector<std::int64_t>& shape,
                       const at::Tensor& value,
                       std::size_t factor = 0) {
    const std::size_t slot = (layer * groups().size() + group_index(group)) * kFactors + factor;
    entries_.push_back({name, group, shape, slot, begin});
    begin += value.numel();
    pieces.push_back(value.reshape(-1).to(device));
  };
  for (std::size_t layer = 0; layer < num_layers_; ++layer) {
    const int layer_idx = static_cast<int>(layer);
    if (start.layers[layer].empty()) continue;
    for (const auto& module : start.target_modules) {
      const LoraPair& pair = start.layers[layer].at(module);
      add(lora_name(layer_idx, module, "lora_A"), module, layer, pair.a.sizes().vec(), pair.a);
      add(lora_name(layer_idx, module, "lora_B"), module, layer, pair.b.sizes().vec(), pair.b, 1);
    }
  }
  update_sums_.resize((num_layers_ + 1) * groups().size() * kFactors);
  num_lora_entries_ = entries_.size();
  for (const TrainedPart& part : parts) {
    const std::size_t layer =
        part.layer_idx < 0 ? num_layers_ : static_cast<std::size_t>(part.layer_idx);
    add(part.name, part.group, layer, part.shape, *part.value);
  }
  if (pieces.empty()) {
    throw Error(ErrorKind::kUsage,
                "finetune.trainable: no layer of this student has anything of what it names; add "
                "\"lora\"");
  }
  values_ = at::cat(pieces);
  optimizer_.emplace(std::vector{values_}, AdamWOptions{.weight_decay = weight_decay});
  adapter_ = start;
  adapter_ = views_of(values_);
  auto entry = entries_.begin() + static_cast<std::ptrdiff_t>(num_lora_entries_);
  for (const TrainedPart& part : parts) {
    *part.value = values_.narrow(0, entry->begin, part.value->numel()).view(part.value->sizes());
    parts_.push_back(*part.value);
    ++entry;
  }
}

LoraAdapter TrainedParameters::views_of(const at::Tensor& flat) const {
  LoraAdapter views{adapter_.rank, adapter_.alpha, adapter_.target_modules, {}};
  views.layers.resize(adapter_.layers.size());
  auto entry = entries_.begin();
  const auto next = [&] {
    const at::Tensor view = flat.narrow(0, entry->begin, product(entry->shape)).view(entry->shape);
    ++entry;
    return view;
  };
  for (std::size_t i = 0; i < views.layers.size(); ++i) {
    if (adapter_.layers[i].empty()) continue;
    for (const auto& module : views.target_modules) {
      const at::Tensor a = next();
      views.layers[i][module] = {a, next()};
    }
  }
  return views;
}

void TrainedParameters::collect_part_gradients(const at::Tensor& flat) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    at::Tensor& gradient = parts_[i].mutable_grad();
    if (!flat.defined()) {
      gradient = at::Tensor();
      continue;
    }
    gradient = flat.narrow(0, entries_[num_lora_entries_ + i].begin, parts_[i].numel())
                   .view(parts_[i].sizes());
  }
}

void TrainedParameters::zero_part_gradients(const at::Tensor& flat) const {
  if (parts_.empty()) return;
  const std::int64_t begin = entries_[num_lora_entries_].begin;
  flat.narrow(0, begin, size() - begin).zero_();
}

TrainedTensors TrainedParameters::best_parts() const {
  TrainedTensors values;
  for (std::size_t i = num_lora_entries_; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    values[entry.name] =
        best_values().narrow(0, entry.begin, product(entry.shape)).view(entry.shape).clone();
  }
  return values;
}

std::vector<double> TrainedParameters::squares(const at::Tensor& flat) const {
  std::vector<double> sums(update_sums_.size());
  if (flat.is_cuda()) {
    // A launch for all of them and one wait, where each entry's own sum would be one of hundreds.
    std::vector<at::Tensor> parts;
    for (const Entry& entry : entries_)
      parts.push_back(flat.narrow(0, entry.begin, product(entry.shape)));
    const at::Tensor norms = at::stack(at::_foreach_norm(parts, 2, at::kDouble)).cpu();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const double norm = norms.const_data_ptr<double>()[i];
      sums[entries_[i].slot] += norm * norm;
    }
    return sums;
  }
  for (const Entry& entry : entries_) {
    sums[entry.slot] += flat.narrow(0, entry.begin, product(entry.shape))
                            .to(at::kDouble)
                            .square()
                            .sum()
                            .item<double>();
  }
  return sums;
}

TrainedParameters::StepNorms TrainedParameters::step(const at::Tensor& gradient,
                                                     const StepOptions& options,
                                                     const SumOverStages& sum) {
  TORCH_CHECK(gradient.numel() == size(),
              "gradient of ",
              gradient.numel(),
              " values for ",
              size(),
              " parameters");
  std::vector<double> of_gradient = squares(gradient);
  if (sum) sum(of_gradient);
  double sum_of_squares = 0.0;
  for (std::size_t i = 0; i < of_gradient.size(); i += kFactors)
    sum_of_squares += of_gradient[i] + of_gradient[i + 1];
  const double norm = std::sqrt(sum_of_squares);
  if (!std::isfinite(norm)) {
    throw Error(ErrorKind::kCorrupt,
                "finetune step " + std::to_string(num_steps() + 1) +
                    ": the gradient is not finite; lower finetune.learning_rate or resume from an "
                    "earlier checkpoint");
  }
  const double factor = clip_factor(norm, options.gradient_clip);
  if (factor != 1.0) gradient.mul_(factor);
  values_.mutable_grad() = gradient;
  const at::Tensor before = values_.clone();
  optimizer_->step(options.learning_rate);
  std::vector<double> of_change = squares(values_ - before);
  if (sum) sum(of_change);
  StepNorms norms{norm, {}};
  for (const Entry& entry : entries_) norms.updates[entry.group] = 0.0;
  for (std::size_t i = 0; i < of_change.size(); ++i) {
    if (of_change[i] > 0.0) norms.updates[groups()[i / kFactors % groups().size()]] += of_change[i];
    update_sums_[i] += std::sqrt(of_change[i]);
  }
  for (auto& [group, update] : norms.updates) update = std::sqrt(update);
  return norms;
}

std::map<std::string, double> TrainedParameters::update_sums() const {
  const std::size_t width = groups().size() * kFactors;
  std::map<std::string, double> sums;
  for (std::size_t layer = 0; layer <= num_layers_; ++layer) {
    for_each_slot(std::span(update_sums_).subspan(layer * width, width),
                  [&sums](const std::string& key, double value) { sums[key] += value; });
  }
  return sums;
}

nlohmann::json TrainedParameters::update_sums_by_layer() const {
  const std::size_t width = groups().size() * kFactors;
  nlohmann::json layers = nlohmann::json::array();
  for (std::size_t layer = 0; layer <= num_layers_; ++layer) {
    nlohmann::json own = nlohmann::json::object();
    for_each_slot(std::span(update_sums_).subspan(layer * width, width),
                  [&own](const std::string& key, double value) { own[key] = value; });
    if (own.empty()) continue;
    if (layer < num_layers_) own["layer"] = layer;
    layers.push_back(std::move(own));
  }
  return layers;
}

storage::Checkpoint TrainedParameters::checkpoint() const {
  storage::Checkpoint checkpoint;
  for (const Entry& entry : entries_) {
    const std::int64_t numel = product(entry.shape);
    const auto slice = [&](const at::Tensor& flat) {
      return to_owned(flat.narrow(0, entry.begin, numel).view(entry.shape));
    };
    checkpoint.tensors[entry.name] = slice(values_);
    checkpoint.tensors[entry.name + ".exp_avg"] = slice(optimizer_->exp_avg().front());
    checkpoint.tensors[entry.name + ".exp_avg_sq"] = slice(optimizer_->exp_avg_sq().front());
    if (best_.defined()) checkpoint.tensors[entry.name + ".best"] = slice(best_);
  }
  checkpoint.state = {{"step", num_steps()}, {"update_sums", update_sums_}};
  return checkpoint;
}

void TrainedParameters::restore(const storage::Checkpoint& checkpoint) {
  const bool has_best = checkpoint.tensors.contains(entries_.front().name + ".best");
  best_ = has_best ? at::empty_like(values_) : at::Tensor();
  for (const Entry& entry : entries_) {
    const auto take = [&](const std::string& name, const at::Tensor& flat) {
      const auto found = checkpoint.tensors.find(name);
      if (found == checkpoint.tensors.end() || found->second.shape != entry.shape ||
          found->second.dtype != storage::DType::kF32) {
        throw Error(ErrorKind::kCorrupt,
                    "finetune checkpoint: tensor " + name + " is missing or misshaped");
      }
      flat.narrow(0, entry.begin, product(entry.shape))
          .view(entry.shape)
          .copy_(to_tensor(found->second));
    };
    take(entry.name, values_);
    take(entry.name + ".exp_avg", optimizer_->exp_avg().front());
    take(entry.name + ".exp_avg_sq", optimizer_->exp_avg_sq().front());
    if (has_best) take(entry.name + ".best", best_);
  }
  optimizer_->set_num_steps(checkpoint.state.at("step").get<std::int64_t>());
  // Checkpoints of earlier builds have none: the sums begin at their step.
  std::ranges::fill(update_sums_, 0.0);
  const auto sums = checkpoint.state.value("update_sums", update_sums_);
  if (sums.size() != update_sums_.size())
    throw Error(ErrorKind::kCorrupt, "finetune checkpoint: update_sums are another model's");
  update_sums_ = sums;
}

}  // namespace hedgerow::worker
