#include "worker/task/run_context.hpp"

#include <ATen/ATen.h>

#include "storage/base/error.hpp"
#include "worker/device/cuda_device.hpp"

namespace hedgerow::worker {

using storage::Error;
using storage::ErrorKind;

RunContext::RunContext(const std::filesystem::path& root, int local_rank)
    : RunContext(root, [local_rank](const std::string& word) {
        return resolve_device(word, local_rank);
      }) {}

RunContext::RunContext(const std::filesystem::path& root, const at::Device& device)
    : RunContext(root, [device](const std::string& /*word*/) { return device; }) {}

RunContext::RunContext(const std::filesystem::path& root, const ChooseDevice& choose)
    : layout_(root),
      recipe_(storage::Recipe::load_of_run(layout_.recipe())),
      model_(storage::ModelDirectory::open(recipe_.model.path)),
      device_(choose(recipe_.plan.device)),
      compute_dtype_(resolve_compute_dtype(recipe_.plan.compute_dtype, device_)),
      stream_(stream_dtype(recipe_.plan.shard_dtype)) {}

LoadHooks RunContext::load_hooks(std::function<void()> check_cancelled) const {
  return {std::move(check_cancelled), [this](int layer_idx, const storage::Hash128& hash) {
            storage::record_or_require_weights(layout_, model_, layer_idx, hash);
          }};
}

const storage::TokenSequences& RunContext::tokens(const storage::TokensOf& of) {
  const auto found = tokens_.find(of);
  if (found != tokens_.end()) return found->second;
  const auto path = layout_.resolve(storage::RunLayout::tokens(of));
  storage::TokenSequences loaded = storage::load_tokens(path, config().vocab_size);
  if (loaded.seq_len > config().max_position_embeddings) {
    throw Error(ErrorKind::kUsage,
                path.string() + ": sequences of " + std::to_string(loaded.seq_len) +
                    " tokens, but the model has " +
                    std::to_string(config().max_position_embeddings) + " positions");
  }
  return tokens_.emplace(of, std::move(loaded)).first->second;
}

storage::CapturePlan RunContext::capture_plan() {
  const storage::TokenSequences& transfer = tokens(storage::DataStage::kTransfer);
  return storage::make_capture_plan(
      recipe_, transfer.num_train, transfer.num_sequences, config().hidden_size);
}

storage::LogitsPlan RunContext::logits_plan() {
  const storage::TokenSequences& finetune = tokens(storage::DataStage::kFinetune);
  const storage::LogitsPlan plan = storage::make_logits_plan(
      recipe_, capture_plan(), finetune.num_train, finetune.num_sequences, config().hidden_size);
  const auto hash = [this](storage::DataStage stage) { return tokens(stage).content_hash; };
  if (plan.from_boundary &&
      hash(storage::DataStage::kFinetune) != hash(storage::DataStage::kTransfer)) {
    throw Error(
        ErrorKind::kUsage,
        "tokens/finetune.h5 is not the text of tokens/transfer.h5, which the recipe gives to "
        "both stages; make both from it again, or write down data.finetune.sources");
  }
  return plan;
}

const at::Tensor& RunContext::embedding() {
  if (!embedding_.defined())
    embedding_ = load_embedding(model_, compute_dtype_, device(), load_hooks({}));
  return embedding_;
}

const RopeTable& RunContext::rope(std::int64_t seq_len) {
  if (!rope_ || rope_->cos.size(0) < seq_len) rope_ = make_rope_table(config(), seq_len, device());
  return *rope_;
}

void RunContext::release_memory() {
  block_.reset();
  rope_.reset();
  embedding_.reset();
  if (device_.is_cuda()) cuda::release_reserve();
}

const BlockRunner& RunContext::block(int first_layer,
                                     int num_layers,
                                     const std::function<void(int)>& loaded) {
  if (block_ && block_->first_layer() == first_layer && block_->num_layers() == num_layers)
    return *block_;
  if (first_layer < 0 || num_layers < 1 || first_layer + num_layers > config().num_hidden_layers) {
    throw Error(ErrorKind::kInternal,
                "a task for layers " + std::to_string(first_layer) + ".." +
                    std::to_string(first_layer + num_layers - 1) + " of a model with " +
                    std::to_string(config().num_hidden_layers));
  }
  block_.reset();  // two blocks need not fit in memory
  std::vector<LayerWeights> layers;
  for (int i = 0; i < num_layers; ++i) {
    const auto check_cancelled = [&loaded, i] {
      if (loaded) loaded(i);
    };
    layers.push_back(
        load_layer(model_, first_layer + i, compute_dtype_, device(), load_hooks(check_cancelled)));
    pack_layer(layers.back(), tokens(storage::DataStage::kTransfer).seq_len);
    if (loaded) loaded(i + 1);
  }
  block_.emplace(config(), first_layer, std::move(layers), stream_);
  return *block_;
}

}  // namespace hedgerow::worker
