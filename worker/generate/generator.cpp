#include "worker/generate/generator.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

std::span<const float> values(const at::Tensor& logits) {
  return {logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel())};
}

}  // namespace

// The rows that have not ended.
struct Generator::Batch {
  std::vector<std::int64_t> row;       // index of the prompt
  std::vector<std::int64_t> token;     // chosen last
  std::vector<std::int64_t> position;  // of `token`
  std::vector<AttentionCache> caches;  // by layer

  void keep(const std::vector<std::int64_t>& kept) {
    if (kept.size() == row.size()) return;
    const auto select = [&kept](std::vector<std::int64_t>& list) {
      std::vector<std::int64_t> chosen;
      for (const auto i : kept) chosen.push_back(list[static_cast<std::size_t>(i)]);
      list = std::move(chosen);
    };
    select(row);
    select(token);
    select(position);
    const at::Tensor index = at::tensor(kept, at::kLong);
    for (auto& cache : caches) cache.keep(index);
  }
};

Generator::Generator(const storage::ModelConfig& config,
                     OuterWeights outer,
                     std::vector<LayerWeights> layers,
                     std::optional<Student> student)
    : config_(config),
      outer_(std::move(outer)),
      layers_(std::move(layers)),
      student_(std::move(student)) {}

Generator Generator::load(const storage::ModelDirectory& model,
                          std::optional<Student> student,
                          const LoraAdapter* adapter,
                          const at::Device& device,
                          at::ScalarType compute_dtype,
                          const std::function<void(double)>& progress) {
  LoadHooks hooks;
  if (student) {
    hooks.check_hash = [&](int layer, const storage::Hash128& hash) {
      student->require_teacher(model, layer, hash);
    };
  }
  std::vector<LayerWeights> layers;
  for (int i = 0; i < model.config().num_hidden_layers; ++i) {
    layers.push_back(load_layer(model, i, compute_dtype, device, hooks));
    if (adapter != nullptr) merge_into(layers.back(), *adapter, i, model.config());
    if (progress) progress(static_cast<double>(i + 1) / model.config().num_hidden_layers);
  }
  OuterWeights outer = load_outer(model, compute_dtype, device, hooks);
  if (adapter != nullptr) put_in_place(parts_of(outer), adapter->trained);
  return {model.config(), std::move(outer), std::move(layers), std::move(student)};
}

const std::optional<kernels::HybridParameters>& Generator::parameters(std::size_t layer) const {
  static const std::optional<kernels::HybridParameters> kSoftmax;
  return student_ ? student_->layers[layer] : kSoftmax;
}

void Generator::check(const std::vector<std::vector<std::int64_t>>& prompts,
                      std::int64_t max_new_tokens) const {
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    const std::string name = "prompt " + std::to_string(row);
    if (prompts[row].empty())
      throw Error(ErrorKind::kUsage, name + " is empty; give it at least one token");
    for (const auto token : prompts[row]) {
      if (token >= 0 && token < config_.vocab_size) continue;
      throw Error(ErrorKind::kUsage,
                  name + ": token id " + std::to_string(token) + " is outside the vocabulary of " +
                      std::to_string(config_.vocab_size) + " entries");
    }
    if (!has_softmax(student_ ? &*student_ : nullptr)) continue;
    const auto length = static_cast<std::int64_t>(prompts[row].size());
    // The last one chosen is not attended to any more.
    config_.require_within_window(length + max_new_tokens - 1,
                                  name + ", " + std::to_string(length) + " tokens and " +
                                      std::to_string(max_new_tokens) + " new ones,");
  }
}

// [1, ids, M].
at::Tensor Generator::embedded(const std::vector<std::int64_t>& ids) const {
  return embed(at::tensor(ids, at::kLong).unsqueeze(0).to(device()), outer_.embed_tokens);
}

// [1, V] logits after the prompt's last token.
at::Tensor Generator::prefill(const std::vector<std::int64_t>& prompt,
                              std::vector<AttentionCache>& caches,
                              const std::function<void()>& on_layer) const {
  const auto length = static_cast<std::int64_t>(prompt.size());
  const RopeTable rope{rope_.cos.narrow(0, 0, length), rope_.sin.narrow(0, 0, length)};
  const auto options = student_ ? student_->options : kernels::HybridOptions{};
  at::Tensor hidden = embedded(prompt);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    hidden = decoder_layer(
        hidden, layers_[i], rope, config_, hidden.scalar_type(), [&](const Qkv& heads) {
          caches.emplace_back(heads, parameters(i), options);
          return student_attention(heads, parameters(i), options);
        });
    on_layer();
  }
  return logits(hidden.select(1, length - 1), outer_, config_);
}

// [B, V] logits on the CPU after one more token a row.
at::Tensor Generator::step(const std::vector<std::int64_t>& tokens,
                           const std::vector<std::int64_t>& positions,
                           std::vector<AttentionCache>& caches) const {
  // The rows stand where a sequence's tokens would, each with its own line of the rotary table.
  const at::Tensor index = at::tensor(positions, at::kLong).to(device());
  const RopeTable rope{rope_.cos.index_select(0, index), rope_.sin.index_select(0, index)};
  at::Tensor hidden = embedded(tokens);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto by_row = [](const at::Tensor& x) {
      return x.squeeze(0).transpose(0, 1).contiguous();
    };
    hidden = decoder_layer(
        hidden, layers_[i], rope, config_, hidden.scalar_type(), [&](const Qkv& heads) {
          const at::Tensor y = caches[i].step({by_row(heads.q), by_row(heads.k), by_row(heads.v)});
          return y.transpose(0, 1).unsqueeze(0);
        });
  }
  return logits(hidden.squeeze(0), outer_, config_).cpu();
}

// Every prompt run through the layers; `first` gets the logits [rows, V] of the first new
// tokens, on the CPU.
Generator::Batch Generator::start(const std::vector<std::vector<std::int64_t>>& prompts,
                                  at::Tensor& first,
                                  GenerationObserver& observer) const {
  Batch batch;
  std::vector<std::vector<AttentionCache>> by_layer(layers_.size());
  std::vector<at::Tensor> rows;
  std::size_t num_layers_done = 0;
  const auto on_layer = [&] {
    observer.on_prefill(static_cast<double>(++num_layers_done) /
                        static_cast<double>(prompts.size() * layers_.size()));
  };
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    std::vector<AttentionCache> caches;
    rows.push_back(prefill(prompts[row], caches, on_layer));
    for (std::size_t i = 0; i < caches.size(); ++i) by_layer[i].push_back(std::move(caches[i]));
    batch.row.push_back(static_cast<std::int64_t>(row));
    batch.token.push_back(prompts[row].back());
    batch.position.push_back(static_cast<std::int64_t>(prompts[row].size()) - 1);
  }
  for (auto& layer : by_layer) batch.caches.push_back(AttentionCache::joined(std::move(layer)));
  first = at::cat(rows).cpu();
  return batch;
}

void Generator::run(const std::vector<std::vector<std::int64_t>>& prompts,
                    const GenerateOptions& options,
                    GenerationObserver& observer) {
  const at::NoGradGuard no_gradients;
  options.sampling.validate();
  check(prompts, options.max_new_tokens);
  if (prompts.empty() || options.max_new_tokens < 1) return;
  const auto longest =
      std::ranges::max(prompts, {}, [](const auto& prompt) { return prompt.size(); }).size();
  rope_ = make_rope_table(
      config_, static_cast<std::int64_t>(longest) + options.max_new_tokens, device());
  std::vector<std::int64_t> ends = options.end_tokens;
  if (ends.empty()) ends.assign(config_.eos_token_ids.begin(), config_.eos_token_ids.end());

  std::vector<std::vector<std::int64_t>> generated(prompts.size());
  at::Tensor next;  // logits [rows of the batch, V]
  Batch batch = start(prompts, next, observer);
  for (std::int64_t count = 1; !batch.row.empty(); ++count) {
    std::vector<std::int64_t> going;
    for (std::size_t i = 0; i < batch.row.size(); ++i) {
      const at::Tensor row_logits = next[static_cast<std::int64_t>(i)];
      const std::int64_t row = batch.row[i], position = ++batch.position[i];
      if (!at::isfinite(row_logits).all().item<bool>()) {
        throw Error(ErrorKind::kUsage,
                    "the logits of prompt " + std::to_string(row) + " at position " +
                        std::to_string(position) + " are not finite; check the model's weights");
      }
      observer.on_logits(row, position, row_logits);
      batch.token[i] = sample(values(row_logits), options.sampling, row, position);
      auto& ids = generated[static_cast<std::size_t>(row)];
      ids.push_back(batch.token[i]);
      if (count == options.max_new_tokens || std::ranges::count(ends, batch.token[i]) > 0) {
        observer.on_row(row, ids);
      } else {
        going.push_back(static_cast<std::int64_t>(i));
      }
    }
    cache_bytes_ = 0;
    for (const auto& cache : batch.caches) cache_bytes_ += cache.bytes();
    batch.keep(going);
    if (!going.empty()) next = step(batch.token, batch.position, batch.caches);
  }
}

}  // namespace hedgerow::worker
