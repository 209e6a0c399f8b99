#include "worker/finetune/lora_parameters.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>

#include "storage/error.hpp"
#include "worker/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kEpsilon = 1e-8;
constexpr double kClipEpsilon = 1e-6;  // torch.nn.utils.clip_grad_norm_'s

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t numel = 1;
  for (const auto size : shape) numel *= size;
  return numel;
}

double norm(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

}  // namespace

LoraParameters::LoraParameters(const LoraAdapter& start, const at::Device& device) {
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
  exp_avg_ = at::zeros_like(values_);
  exp_avg_sq_ = at::zeros_like(values_);
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

double LoraParameters::step(std::vector<float>& gradient, const StepOptions& options) {
  TORCH_CHECK(static_cast<std::int64_t>(gradient.size()) == size(),
              "gradient of ",
              gradient.size(),
              " values for ",
              size(),
              " parameters");
  const double length = norm(gradient);
  if (!std::isfinite(length)) {
    throw Error(ErrorKind::kCorrupt,
                "finetune step " + std::to_string(num_steps_ + 1) +
                    ": the gradient is not finite; lower finetune.learning_rate or resume from an "
                    "earlier checkpoint");
  }
  ++num_steps_;
  const bool clips = options.gradient_clip > 0.0 && length > options.gradient_clip;
  const auto scale =
      static_cast<float>(clips ? options.gradient_clip / (length + kClipEpsilon) : 1.0);
  const auto steps = static_cast<double>(num_steps_);
  const auto rate = static_cast<float>(options.learning_rate / (1.0 - std::pow(kBeta1, steps)));
  const auto correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(kBeta2, steps)));
  const auto keep = static_cast<float>(1.0 - options.learning_rate * options.weight_decay);
  auto* value = values_.mutable_data_ptr<float>();
  auto* average = exp_avg_.mutable_data_ptr<float>();
  auto* square = exp_avg_sq_.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i] * scale;
    average[i] = static_cast<float>(kBeta1) * average[i] + static_cast<float>(1.0 - kBeta1) * g;
    square[i] = static_cast<float>(kBeta2) * square[i] + static_cast<float>(1.0 - kBeta2) * g * g;
    const float denominator = std::sqrt(square[i]) * correction + static_cast<float>(kEpsilon);
    value[i] = keep * value[i] - rate * average[i] / denominator;
  }
  update_device_values();
  return length;
}

storage::Checkpoint LoraParameters::checkpoint() const {
  storage::Checkpoint checkpoint;
  for (const Entry& entry : entries_) {
    const std::int64_t numel = product(entry.shape);
    const auto slice = [&](const at::Tensor& flat) {
      return to_owned(flat.narrow(0, entry.begin, numel).view(entry.shape));
    };
    checkpoint.tensors[entry.name] = slice(values_);
    checkpoint.tensors[entry.name + ".exp_avg"] = slice(exp_avg_);
    checkpoint.tensors[entry.name + ".exp_avg_sq"] = slice(exp_avg_sq_);
  }
  checkpoint.state = {{"step", num_steps_}};
  return checkpoint;
}

void LoraParameters::restore(const storage::Checkpoint& checkpoint) {
  if (checkpoint.tensors.size() != 3 * entries_.size()) {
    throw Error(ErrorKind::kCorrupt,
                "finetune checkpoint: expected " + std::to_string(3 * entries_.size()) +
                    " tensors, found " + std::to_string(checkpoint.tensors.size()));
  }
  for (const Entry& entry : entries_) {
    const auto take = [&](const std::string& name, at::Tensor& flat) {
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
    take(entry.name + ".exp_avg", exp_avg_);
    take(entry.name + ".exp_avg_sq", exp_avg_sq_);
  }
  update_device_values();
  num_steps_ = checkpoint.state.at("step").get<std::int64_t>();
}

}  // namespace hedgerow::worker
