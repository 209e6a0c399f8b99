#include "worker/finetune/trained_parameters.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>

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

}  // namespace

TrainedParameters::TrainedParameters(const LoraAdapter& start,
                                     const std::vector<TrainedPart>& parts,
                                     const at::Device& device,
                                     double weight_decay) {
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  const auto add = [&](const std::string& name,
                       const std::string& group,
                       const std::vector<std::int64_t>& shape,
                       const at::Tensor& value) {
    entries_.push_back({name, group, shape, begin});
    begin += value.numel();
    pieces.push_back(value.reshape(-1).cpu());
  };
  for (std::size_t layer = 0; layer < start.layers.size(); ++layer) {
    const int layer_idx = static_cast<int>(layer);
    for (const auto& module : start.target_modules) {
      const LoraPair& pair = start.layers[layer].at(module);
      add(lora_name(layer_idx, module, "lora_A"), module, pair.a.sizes().vec(), pair.a);
      add(lora_name(layer_idx, module, "lora_B"), module, pair.b.sizes().vec(), pair.b);
    }
  }
  num_lora_entries_ = entries_.size();
  for (const TrainedPart& part : parts) add(part.name, part.group, part.shape, *part.value);
  if (pieces.empty()) {
    throw Error(ErrorKind::kUsage,
                "finetune.trainable: no layer of this student has anything of what it names; add "
                "\"lora\"");
  }
  values_ = at::cat(pieces);
  optimizer_.emplace(std::vector{values_}, AdamWOptions{.weight_decay = weight_decay});
  adapter_ = start;
  device_values_ = values_.to(device);
  adapter_ = views_of(device_values_);
  auto entry = entries_.begin() + static_cast<std::ptrdiff_t>(num_lora_entries_);
  for (const TrainedPart& part : parts) {
    *part.value =
        device_values_.narrow(0, entry->begin, part.value->numel()).view(part.value->sizes());
    parts_.push_back(*part.value);
    ++entry;
  }
}

void TrainedParameters::update_device_values() {
  if (!device_values_.is_same(values_)) device_values_.copy_(values_);
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
  for (auto& layer : views.layers) {
    for (const auto& module : views.target_modules) {
      const at::Tensor a = next();
      layer[module] = {a, next()};
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
    gradient.zero_();
  }
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

std::map<std::string, double> TrainedParameters::update_norms(const at::Tensor& before) const {
  const at::Tensor change = values_ - before;
  std::map<std::string, double> norms;
  for (const Entry& entry : entries_) {
    const double norm = change.narrow(0, entry.begin, product(entry.shape)).norm().item<double>();
    norms[entry.group] += norm * norm;
  }
  for (auto& [group, norm] : norms) norm = std::sqrt(norm);
  return norms;
}

TrainedParameters::StepNorms TrainedParameters::step(const at::Tensor& gradient,
                                                     const StepOptions& options) {
  TORCH_CHECK(gradient.numel() == size(),
              "gradient of ",
              gradient.numel(),
              " values for ",
              size(),
              " parameters");
  values_.mutable_grad() = gradient;
  const double norm = optimizer_->clip_gradients(options.gradient_clip);
  if (!std::isfinite(norm)) {
    values_.mutable_grad() = at::Tensor();
    throw Error(ErrorKind::kCorrupt,
                "finetune step " + std::to_string(num_steps() + 1) +
                    ": the gradient is not finite; lower finetune.learning_rate or resume from an "
                    "earlier checkpoint");
  }
  const at::Tensor before = values_.clone();
  optimizer_->step(options.learning_rate);
  update_device_values();
  return {norm, update_norms(before)};
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
  checkpoint.state = {{"step", num_steps()}};
  return checkpoint;
}

void TrainedParameters::restore(const storage::Checkpoint& checkpoint) {
  const bool has_best = checkpoint.tensors.contains(entries_.front().name + ".best");
  const std::size_t expected = (has_best ? 4 : 3) * entries_.size();
  if (checkpoint.tensors.size() != expected) {
    throw Error(ErrorKind::kCorrupt,
                "finetune checkpoint: expected " + std::to_string(expected) + " tensors, found " +
                    std::to_string(checkpoint.tensors.size()));
  }
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
  update_device_values();
  optimizer_->set_num_steps(checkpoint.state.at("step").get<std::int64_t>());
}

}  // namespace hedgerow::worker
