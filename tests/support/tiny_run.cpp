#include "tests/support/tiny_run.hpp"

#include <algorithm>
#include <cstring>

#include "storage/base/philox.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/transfer/capture.hpp"
#include "worker/transfer/transfer.hpp"

namespace hedgerow::tests {

void LocalTaskContext::commit(const storage::FileRecord& file) const {
  const auto target = layout_.resolve(file.name);
  std::filesystem::create_directories(target.parent_path());
  storage::publish(worker::attempt_path(layout_, token_, file.name), target);
}

void LocalTaskContext::publish_shard(const storage::FileRecord& file, int shard) {
  commit(file);
  shards[shard] = file;
}

void LocalTaskContext::publish_checkpoint(const storage::FileRecord& file, std::int64_t step) {
  checkpoints[step] = file;
  published_steps.push_back(step);
}

storage::Recipe tiny_recipe(const std::filesystem::path& model) {
  storage::Recipe recipe;
  recipe.seed = 7;
  recipe.model.path = model.string();
  storage::DataSource source;
  source.path = "text.txt";
  for (storage::DataSection* data :
       {&recipe.data_transfer, &recipe.data_finetune, &recipe.data_evaluate}) {
    data->sources = {source};
    data->seq_len = 40;
    data->validation_sequences = 4;
  }
  recipe.attention.feature_dim = 16;
  recipe.attention.window_size = 8;
  recipe.attention.num_sinks = 1;  // with more, six steps stay behind the control
  recipe.plan.layers_per_block = 2;
  recipe.plan.sequences_per_forward = 2;
  recipe.plan.shard_mib = 1;
  recipe.plan.compute_dtype = "fp32";
  recipe.transfer.max_steps = 6;
  recipe.transfer.sequences_per_step = 4;
  recipe.transfer.validate_every = 2;
  recipe.transfer.validation_sequences = 3;
  recipe.transfer.checkpoint_every = 2;
  return recipe;
}

void write_tiny_run(const std::filesystem::path& root,
                    const storage::Recipe& recipe,
                    std::int64_t num_train) {
  std::filesystem::create_directories(root / "tokens");
  storage::write_atomically(root / "run.toml", recipe.to_toml());
  const auto vocab = storage::ModelDirectory::open(recipe.model.path).config().vocab_size;
  storage::TokenSequences tokens;
  tokens.num_train = num_train;
  tokens.num_sequences = num_train + recipe.data_transfer.validation_sequences;
  tokens.seq_len = recipe.data_transfer.seq_len;
  tokens.vocab_size = vocab;
  tokens.sources = "[]";
  storage::PhiloxStream random(recipe.seed, 0x746f6b65, 0, 0);
  const auto count = static_cast<std::size_t>(tokens.num_sequences * tokens.seq_len);
  for (std::size_t i = 0; i < count; ++i)
    tokens.input_ids.push_back(static_cast<std::int32_t>(random.uniform() * vocab));
  tokens.loss_mask.assign(count, 1);
  tokens.document_starts.assign(count, 0);
  for (const auto stage : {storage::DataStage::kTransfer,
                           storage::DataStage::kFinetune,
                           storage::DataStage::kEvaluate}) {
    storage::write_tokens(root / storage::RunLayout::tokens(stage), tokens);
  }
}

std::vector<Block> blocks_of(int num_layers, int layers_per_block) {
  std::vector<Block> blocks;
  for (int first = 0; first < num_layers; first += layers_per_block) {
    blocks.push_back({first, std::min(layers_per_block, num_layers - first)});
  }
  return blocks;
}

wire::Task capture_task(worker::RunContext& run,
                        int index,
                        const Block& block,
                        storage::FencingToken token,
                        const std::vector<storage::FileRecord>& inputs) {
  const storage::CapturePlan plan = run.capture_plan();
  wire::Task task;
  task.kind = wire::TaskKind::kCapture;
  task.fencing_token = token;
  task.block = index;
  task.first_layer = block.first_layer;
  task.num_layers = block.num_layers;
  task.num_shards = plan.num_shards();
  task.sequences_per_shard = plan.sequences_per_shard;
  task.inputs = inputs;
  return task;
}

wire::Task transfer_task(const worker::RunContext& run,
                         int index,
                         const Block& block,
                         storage::FencingToken token,
                         const std::vector<storage::FileRecord>& inputs) {
  wire::Task task;
  task.kind = wire::TaskKind::kTransfer;
  task.fencing_token = token;
  task.block = index;
  task.first_layer = block.first_layer;
  task.num_layers = block.num_layers;
  task.inputs = inputs;
  task.seed = run.recipe().seed;
  return task;
}

wire::Task finetune_task(storage::FencingToken token, const std::string& student) {
  wire::Task task;
  task.kind = wire::TaskKind::kFinetune;
  task.fencing_token = token;
  task.inputs.resize(2);
  task.inputs[0].name = student + "/hedgerow.json";
  task.inputs[1].name = student + "/feature_maps.safetensors";
  return task;
}

PipelineResult run_pipeline(const std::filesystem::path& root, const at::Device& device) {
  worker::RunContext run(root, device);
  const auto blocks = blocks_of(run.config().num_hidden_layers, run.recipe().plan.layers_per_block);
  PipelineResult result;
  storage::FencingToken token = 0;
  std::vector<storage::FileRecord> inputs;
  for (int index = 0; index < static_cast<int>(blocks.size()); ++index) {
    const Block& block = blocks[static_cast<std::size_t>(index)];
    result.boundaries.push_back(inputs);
    LocalTaskContext transfer_context(run.layout(), ++token);
    const auto transferred =
        run_transfer(run, transfer_context, transfer_task(run, index, block, token, inputs));
    transfer_context.commit(transferred.files.front());
    result.artifacts.push_back(transferred.files.front());
    result.results.push_back(transferred.result);
    result.maps.merge(tensor_hashes(root / transferred.files.front().name));
    if (index + 1 == static_cast<int>(blocks.size())) break;
    LocalTaskContext capture_context(run.layout(), ++token);
    result.captures.push_back(
        run_capture(run, capture_context, capture_task(run, index, block, token, inputs)).result);
    inputs.clear();
    for (const auto& [shard, file] : capture_context.shards) inputs.push_back(file);
  }
  return result;
}

std::map<std::string, std::string> tensor_hashes(const std::filesystem::path& path) {
  const storage::SafetensorsFile file(path);
  std::map<std::string, std::string> hashes;
  for (const auto& [name, view] : file.tensors()) hashes[name] = storage::hash128(view.bytes).hex();
  return hashes;
}

std::map<std::string, std::vector<float>> tensor_values(const std::filesystem::path& path) {
  const storage::SafetensorsFile file(path);
  std::map<std::string, std::vector<float>> values;
  for (const auto& [name, view] : file.tensors()) {
    auto& floats = values[name];
    floats.resize(view.bytes.size() / sizeof(float));
    std::memcpy(floats.data(), view.bytes.data(), view.bytes.size());
  }
  return values;
}

}  // namespace hedgerow::tests
