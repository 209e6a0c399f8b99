#include "worker/generate/generator.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/shape/budgets.hpp"
#include "worker/device/step_graph.hpp"
#include "worker/model/decoder.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr int kHiddenTag = 1, kTokenTag = 2;
// A rank that waits for a hanging one gives up before the ranks that wait for itself. So the error
// names the rank at fault.
std::chrono::milliseconds later(const Communicator& ranks, int num_hops) {
  constexpr int kHopsOfADeadline = 30;
  return ranks.deadline() + ranks.deadline() * num_hops / kHopsOfADeadline;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace

// The rows that have not ended.
struct Generator::Batch {
  std::vector<std::int64_t> row;       // index of the prompt
  std::vector<std::int64_t> token;     // chosen last
  std::vector<std::int64_t> position;  // of `token`
  std::vector<AttentionCache> caches;  // by layer
  bool may_record = true;
  int unchanged_steps = 0;  // since a row ended
  // A step as a CUDA graph, with what it reads ([B] int64) and writes.
  at::Tensor ids, positions, logits;
  std::unique_ptr<StepGraph> graph;

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
    graph.reset();  // it works on the tensors of the batch before
    unchanged_steps = 0;
    const at::Tensor index = at::tensor(kept, at::kLong);
    for (auto& cache : caches) cache.keep(index);
  }
};

PipelinePlace place_among(Communicator* ranks, const storage::ModelConfig& config) {
  if (ranks == nullptr) return {nullptr, {0, config.num_hidden_layers}};
  const storage::Mesh mesh{.data = 1, .pipeline = ranks->world_size()};
  return {ranks, storage::split_layers(config, mesh)[static_cast<std::size_t>(ranks->rank())]};
}

Generator::Generator(const storage::ModelConfig& config,
                     OuterWeights outer,
                     std::vector<LayerWeights> layers,
                     std::optional<Student> student,
                     PipelinePlace place)
    : config_(config),
      outer_(std::move(outer)),
      layers_(std::move(layers)),
      student_(std::move(student)),
      place_(place),
      dtype_(layers_.front().qkv.weight().scalar_type()) {}

Generator Generator::load(const storage::ModelDirectory& model,
                          std::optional<Student> student,
                          const LoraAdapter* adapter,
                          const at::Device& device,
                          at::ScalarType compute_dtype,
                          const std::function<void(double)>& progress,
                          std::optional<PipelinePlace> given) {
  const PipelinePlace place = given ? *given : place_among(nullptr, model.config());
  LoadHooks hooks;
  if (student) {
    hooks.check_hash = [&](int layer, const storage::Hash128& hash) {
      student->require_teacher(model, layer, hash);
    };
  }
  std::vector<LayerWeights> layers;
  for (int i = place.layers.begin; i < place.layers.end; ++i) {
    layers.push_back(load_layer(model, i, compute_dtype, device, hooks));
    if (adapter != nullptr) merge_into(layers.back(), *adapter, i, model.config());
    if (progress) progress(static_cast<double>(layers.size()) / place.layers.size());
  }
  OuterWeights outer =
      load_outer(model, compute_dtype, device, hooks, {place.is_first(), place.is_last()});
  if (adapter != nullptr) put_in_place(parts_of(outer), adapter->trained);
  return {model.config(), std::move(outer), std::move(layers), std::move(student), place};
}

const std::optional<kernels::HybridParameters>& Generator::parameters(std::size_t layer) const {
  static const std::optional<kernels::HybridParameters> kSoftmax;
  const std::size_t first = static_cast<std::size_t>(place_.layers.begin);
  return student_ ? student_->layers[first + layer] : kSoftmax;
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

// [1, rows, M] of the rank before.
at::Tensor Generator::received(std::int64_t num_rows) const {
  Communicator& ranks = *place_.ranks;
  const DeadlineScope timeout(ranks, later(ranks, ranks.rank()));
  const at::Tensor hidden = at::empty({1, num_rows, config_.hidden_size}, dtype());
  ranks.receive(bytes_of(hidden), ranks.rank() - 1, kHiddenTag);
  return hidden.to(device());
}

// Goes on while this rank computes; one at a time, so that a slow rank does not fill our memory.
// On the CPU it is sent from where it was computed, which is not written to afterwards.
void Generator::hand_on(const at::Tensor& hidden) {
  const auto on_host = std::make_shared<const at::Tensor>(hidden.cpu().contiguous());
  if (outgoing_) outgoing_->wait();
  outgoing_ =
      place_.ranks->start_send(bytes_of(*on_host), on_host, place_.ranks->rank() + 1, kHiddenTag);
}

// The last rank's tokens on every rank.
void Generator::share(std::vector<std::int64_t>& tokens) {
  if (place_.ranks == nullptr) return;
  Communicator& ranks = *place_.ranks;
  const int last = ranks.world_size() - 1;
  const auto bytes = std::as_writable_bytes(std::span(tokens));
  if (ranks.rank() == last) {
    for (int rank = 0; rank < last; ++rank) ranks.send(bytes, rank, kTokenTag);
  } else {
    const DeadlineScope timeout(ranks, later(ranks, ranks.world_size()));
    ranks.receive(bytes, last, kTokenTag);
  }
}

// [1, V] logits after the prompt's last token, on the last rank.
at::Tensor Generator::prefill(const std::vector<std::int64_t>& prompt,
                              std::vector<AttentionCache>& caches,
                              const std::function<void()>& on_layer) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  const RopeTable rope{rope_.cos.narrow(0, 0, length), rope_.sin.narrow(0, 0, length)};
  const LayerContext context{config_, rope, dtype()};
  const auto options = student_ ? student_->options : kernels::HybridOptions{};
  at::Tensor hidden = place_.is_first() ? embedded(prompt) : received(length);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    hidden = run_layer(hidden, layers_[i], context, [&](const Qkv& heads) {
      caches.emplace_back(heads, parameters(i), options);
      return student_attention(heads, parameters(i), options);
    });
    on_layer();
  }
  if (place_.is_last()) return logits(hidden.select(1, length - 1), outer_, config_);
  hand_on(hidden);
  return {};
}

// Runs the layers over the rows' tokens at their positions [B], on the device.
at::Tensor Generator::run_layers(const at::Tensor& embedded_rows,
                                 const at::Tensor& positions,
                                 std::vector<AttentionCache>& caches) {
  // The rows stand where a sequence's tokens would, each with its own line of the rotary table.
  const RopeTable rope{rope_.cos.index_select(0, positions), rope_.sin.index_select(0, positions)};
  const LayerContext context{config_, rope, dtype()};
  at::Tensor hidden = embedded_rows;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto by_row = [](const at::Tensor& x) {
      return x.squeeze(0).transpose(0, 1).contiguous();
    };
    hidden = run_layer(hidden, layers_[i], context, [&](const Qkv& heads) {
      const at::Tensor y = caches[i].step({by_row(heads.q), by_row(heads.k), by_row(heads.v)});
      return y.transpose(0, 1).unsqueeze(0);
    });
  }
  return hidden;
}

bool Generator::can_record(const Batch& batch) const {
  constexpr int kUnchangedSteps = 4;  // a recording takes about as long as two steps
  return batch.may_record && place_.ranks == nullptr && batch.unchanged_steps >= kUnchangedSteps &&
         device().is_cuda() && std::ranges::all_of(batch.caches, [](const AttentionCache& cache) {
           return cache.is_fused();
         });
}

// [B, V] logits after one more token a row, on the last rank.
at::Tensor Generator::step(Batch& batch) {
  const at::Tensor positions = at::tensor(batch.position, at::kLong).to(device());
  ++batch.unchanged_steps;
  if (!batch.graph && can_record(batch)) {
    batch.ids = at::empty_like(positions);
    batch.positions = at::empty_like(positions);
    batch.graph = record_step(device(), [&] {
      const at::Tensor rows = embed(batch.ids.unsqueeze(0), outer_.embed_tokens);
      const at::Tensor hidden = run_layers(rows, batch.positions, batch.caches);
      batch.logits = logits(hidden.squeeze(0), outer_, config_);
    });
  }
  if (batch.graph) {
    batch.ids.copy_(at::tensor(batch.token, at::kLong));
    batch.positions.copy_(positions);
    batch.graph->replay();
    return batch.logits;
  }
  const at::Tensor hidden =
      run_layers(place_.is_first() ? embedded(batch.token) : received(std::ssize(batch.token)),
                 positions,
                 batch.caches);
  if (place_.is_last()) return logits(hidden.squeeze(0), outer_, config_);
  hand_on(hidden);
  return {};
}

// Every prompt run through the layers; `first` gets the logits [rows, V] of the first new
// tokens, on the last rank. Ranks work on different prompts at once.
Generator::Batch Generator::start(const std::vector<std::vector<std::int64_t>>& prompts,
                                  at::Tensor& first,
                                  GenerationObserver& observer) {
  Batch batch;
  std::vector<std::vector<AttentionCache>> by_layer(layers_.size());
  std::vector<at::Tensor> rows;
  std::size_t num_layers_done = 0;
  const auto on_layer = [&] {
    if (outgoing_) outgoing_->is_done();  // moves it on
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
  if (place_.is_last()) first = at::cat(rows);
  return batch;
}

// The next token of each row.
std::vector<std::int64_t> Generator::choose(const Batch& batch,
                                            const at::Tensor& logits,
                                            const SamplingOptions& sampling,
                                            GenerationObserver& observer) const {
  std::vector<std::int64_t> tokens = sample_rows(logits, sampling, batch.row, batch.position);
  for (std::size_t i = 0; i < batch.row.size(); ++i) {
    if (tokens[i] >= 0) continue;
    throw Error(ErrorKind::kUsage,
                "the logits of prompt " + std::to_string(batch.row[i]) + " at position " +
                    std::to_string(batch.position[i]) +
                    " are not finite; check the model's weights");
  }
  if (observer.wants_logits()) {
    const at::Tensor on_host = logits.cpu();
    for (std::size_t i = 0; i < batch.row.size(); ++i)
      observer.on_logits(
          batch.row[i], batch.position[i], on_host[static_cast<std::int64_t>(i)]);
  }
  return tokens;
}

void Generator::score_pass(std::span<const ScoredText> texts,
                           std::vector<std::vector<TokenScore>>& scores) const {
  std::vector<std::int64_t> ids, places, rows, targets;
  for (const ScoredText& text : texts) {
    const auto begin = std::ssize(ids), length = std::ssize(text.ids);
    ids.insert(ids.end(), text.ids.begin(), text.ids.end());
    for (std::int64_t t = 0; t < length; ++t) places.push_back(t);
    for (std::int64_t t = text.first; t < length; ++t) {
      rows.push_back(begin + t - 1);
      targets.push_back(text.ids[static_cast<std::size_t>(t)]);
    }
  }
  const auto on_device = [this](const std::vector<std::int64_t>& list) {
    return at::tensor(list, at::kLong).to(device());
  };
  const at::Tensor positions = on_device(places);
  const RopeTable rope{rope_.cos.index_select(0, positions), rope_.sin.index_select(0, positions)};
  const LayerContext context{config_, rope, dtype()};
  const auto options = student_ ? student_->options : kernels::HybridOptions{};
  at::Tensor hidden = embedded(ids);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    hidden = run_layer(hidden, layers_[i], context, [&](const Qkv& heads) {
      std::vector<at::Tensor> outputs;
      std::int64_t begin = 0;
      for (const ScoredText& text : texts) {
        const auto length = std::ssize(text.ids);
        const auto own = [&](const at::Tensor& x) {
          return x.narrow(2, begin, length).contiguous();
        };
        outputs.push_back(
            student_attention({own(heads.q), own(heads.k), own(heads.v)}, parameters(i), options));
        begin += length;
      }
      return outputs.size() == 1 ? outputs.front() : at::cat(outputs, 2);
    });
  }
  const at::Tensor of_rows = hidden.squeeze(0).index_select(0, on_device(rows));
  const at::Tensor wanted = on_device(targets);
  std::vector<TokenScore> found;
  for (std::int64_t first = 0; first < wanted.size(0); first += storage::kLogitRows) {
    const std::int64_t count = std::min(storage::kLogitRows, wanted.size(0) - first);
    const at::Tensor chunk = logits(of_rows.narrow(0, first, count), outer_, config_);
    const at::Tensor own = wanted.narrow(0, first, count);
    const at::Tensor log_probabilities =
        (chunk.gather(1, own.unsqueeze(1)).squeeze(1) - chunk.logsumexp(-1)).cpu();
    const at::Tensor likeliest = chunk.argmax(-1).eq(own).cpu();
    for (std::int64_t row = 0; row < count; ++row) {
      const double value = log_probabilities.const_data_ptr<float>()[row];
      if (!std::isfinite(value))
        throw Error(ErrorKind::kUsage, "a logit is not finite; check the model's weights");
      found.push_back({value, likeliest.const_data_ptr<bool>()[row]});
    }
  }
  auto next = found.begin();
  for (const ScoredText& text : texts) {
    const auto end = next + (std::ssize(text.ids) - text.first);
    scores.emplace_back(next, end);
    next = end;
  }
}

std::vector<std::vector<TokenScore>> Generator::score(const std::vector<ScoredText>& texts) {
  constexpr std::int64_t kRowsOfAPass = 4096;
  const at::NoGradGuard no_gradients;
  if (place_.ranks != nullptr) throw Error(ErrorKind::kInternal, "ranks score no texts");
  std::vector<std::vector<std::int64_t>> all;
  std::int64_t longest = 1;
  for (const ScoredText& text : texts) {
    const auto length = std::ssize(text.ids);
    if (text.first < 1 || text.first > length) {
      throw Error(ErrorKind::kUsage,
                  "text " + std::to_string(all.size()) + ": its tokens from " +
                      std::to_string(text.first) + " on are to be scored, of " +
                      std::to_string(length) + "; the first one follows nothing");
    }
    all.push_back(text.ids);
    longest = std::max(longest, length);
  }
  check(all, /*max_new_tokens=*/1);
  rope_ = make_rope_table(config_, longest, device());
  std::vector<std::vector<TokenScore>> scores;
  const std::span<const ScoredText> rest(texts);
  for (std::size_t begin = 0, end = 0; begin < texts.size(); begin = end) {
    std::int64_t rows = 0;
    while (end < texts.size() &&
           (end == begin || rows + std::ssize(texts[end].ids) <= kRowsOfAPass))
      rows += std::ssize(texts[end++].ids);
    score_pass(rest.subspan(begin, end - begin), scores);
  }
  return scores;
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
  // Until the first tokens: long prompts take long, and a rank may have loaded before another one.
  std::optional<DeadlineScope> timeout;
  if (place_.ranks != nullptr) timeout.emplace(*place_.ranks);
  Batch batch = start(prompts, next, observer);
  batch.may_record = options.records_steps;
  for (std::int64_t count = 1; !batch.row.empty(); ++count) {
    for (std::int64_t& position : batch.position) ++position;
    if (place_.is_last()) batch.token = choose(batch, next, options.sampling, observer);
    share(batch.token);
    timeout.reset();
    std::vector<std::int64_t> going;
    for (std::size_t i = 0; i < batch.row.size(); ++i) {
      const std::int64_t row = batch.row[i];
      observer.on_token(row, batch.position[i], batch.token[i]);
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
    if (!going.empty()) next = step(batch);
  }
  outgoing_.reset();
}

}  // namespace hedgerow::worker
