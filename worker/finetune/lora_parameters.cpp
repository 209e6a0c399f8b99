#include "worker/finetune/lora_parameters.hpp"

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

LoraParameters::LoraParameters(const LoraAdapter& start,
                               const at::Device& device,
                               double weight_decay) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  const auto add = [&](const std::string& name, const at::Tensor& matrix) {
    entries_.push_back({name, matrix.sizes().vec(), begin});
    begin += matrix.numel();
    parts.push_back(matrix.reshape(-1));
  };
  for (std::size_t layer = 0; layer < start.layers.size(); ++layer) {
    for (const auto& module : start.target_modules) {
      const LoraPair& pair = start.layers[layer].at(module);
      add(lora_name(static_cast<int>(layer), module, "lora_A"), pair.a);
      add(lora_name(static_cast<int>(layer), module, "lora_B"), pair.b);
    }
  }
  values_ = at::cat(parts);
  optimizer_.emplace(std::vector{values_}, AdamWOptions{.weight_decay = weight_decay});
  adapter_ = start;
  device_values_ = values_.to(device);
  adapter_ = views_of(device_values_);
}

void LoraParameters::update_device_values() {
  if (!device_values_.is_same(values_)) device_values_.copy_(values_);
}

LoraAdapter LoraParameters::views_of(const at::Tensor& flat) const {
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

double LoraParameters::step(const at::Tensor& gradient, const StepOptions& options) {
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
  optimizer_->step(options.learning_rate);
  update_device_values();
  return norm;
}

storage::Checkpoint LoraParameters::checkpoint() const {
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

void LoraParameters::restore(const storage::Checkpoint& checkpoint) {
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
