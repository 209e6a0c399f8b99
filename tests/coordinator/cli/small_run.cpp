#include "tests/coordinator/cli/small_run.hpp"

#include "coordinator/state/fold.hpp"
#include "storage/files/file.hpp"
#include "storage/journal/journal.hpp"
#include "storage/shards/hidden_shard.hpp"
#include "storage/shards/tokens_file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/coordinator/cli/tiny_model.hpp"

namespace hedgerow::coordinator::cli {
namespace {

Geometry small_geometry() {
  Geometry geometry;
  geometry.num_layers = 3;
  geometry.layers_per_block = 2;
  geometry.num_shards = 1;
  geometry.sequences_per_shard = 2;
  geometry.finetunes = true;
  return geometry;
}

void grant(std::vector<Event>& events,
           const TaskId& task,
           std::uint64_t token,
           const std::string& worker) {
  events.push_back(Granted{task, token, worker, 1, "a processor"});
}

}  // namespace

SmallRun::SmallRun() : layout(scratch / "run") {
  write_tiny_model(scratch / "model");
  std::filesystem::create_directories(layout.root() / "tokens");
  write_recipe();
  write_tokens();
  std::vector<Event> events{RunStarted{small_geometry(), "test"},
                            RecipeRecorded{storage::read_text(layout.recipe())}};
  grant(events, TaskId::capture(0, 0), 1, "node-0");
  events.push_back(ShardCommitted{1, 0, write_shard()});
  events.push_back(TaskDone{1, {}, nlohmann::json::object()});
  transfer(events, 0, 2, {0.01, 0.02});
  transfer(events, 1, 3, {0.5});
  grant(events, TaskId::assemble(), 4, "coordinator");
  events.push_back(TaskDone{4,
                            {write_maps(student() + "/feature_maps.safetensors"),
                             write_description(),
                             write_provenance()},
                            nullptr});
  append(events);
}

void SmallRun::append(const std::vector<Event>& events) const {
  std::filesystem::create_directories(layout.journal_directory());
  const storage::ReplayResult replayed = storage::replay_journal(layout);
  storage::Journal journal = storage::Journal::start_term(
      layout, replayed, storage::os_disk(), storage::utc_now(), fold(replayed).state.recipe.hash);
  for (const Event& event : events) journal.append(event_to_json(event));
  journal.commit();
}

void SmallRun::flip_byte(const std::string& name, std::uintmax_t offset) const {
  std::fstream file(layout.root() / name, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
}

void SmallRun::transfer(std::vector<Event>& events,
                        int block,
                        std::uint64_t token,
                        const std::vector<double>& mse) const {
  grant(events, TaskId::transfer(block), token, "node-" + std::to_string(block));
  nlohmann::json layers = nlohmann::json::array();
  for (const double value : mse)
    layers.push_back({{"layer", 2 * block + static_cast<int>(layers.size())}, {"mse", value}});
  events.push_back(TaskDone{
      token, {write_maps(storage::RunLayout::block_artifact(block, token))}, {{"layers", layers}}});
}

void SmallRun::write_recipe() const {
  storage::Recipe recipe;
  recipe.model.path = scratch / "model";
  storage::DataSource source;
  source.path = scratch / "text.txt";
  for (storage::DataSection* data :
       {&recipe.data_transfer, &recipe.data_finetune, &recipe.data_evaluate}) {
    data->sources = {source};
    data->seq_len = 4;
  }
  recipe.attention.feature_dim = 8;
  recipe.attention.window_size = 1;  // terraced: of 4 tokens the first two are linear
  recipe.attention.num_sinks = 0;
  recipe.plan.sequences_per_forward = recipe.transfer.sequences_per_step = 1;
  std::ofstream(scratch / "text.txt") << std::string(256, 'x');
  std::ofstream(layout.recipe()) << recipe.to_run_toml();
}

void SmallRun::write_tokens() const {
  storage::TokenSequences tokens;
  tokens.num_sequences = 2;
  tokens.num_train = 1;
  tokens.seq_len = 4;
  tokens.vocab_size = 32;
  tokens.sources = "[]";
  tokens.input_ids.assign(8, 3);
  tokens.loss_mask.assign(8, 1);
  tokens.document_starts.assign(8, 0);
  storage::write_tokens(layout.root() / storage::RunLayout::tokens(storage::DataStage::kTransfer),
                        tokens);
}

std::filesystem::path SmallRun::path_for(const std::string& name) const {
  std::filesystem::create_directories((layout.root() / name).parent_path());
  return layout.root() / name;
}

storage::FileRecord SmallRun::record_of(const std::string& name) const {
  const std::filesystem::path path = layout.root() / name;
  return {name, std::filesystem::file_size(path), storage::hash_file(path)};
}

storage::FileRecord SmallRun::write_shard() const {
  const storage::ShardInfo info{.boundary = 1,
                                .shard = 0,
                                .fencing_token = 1,
                                .num_sequences = 2,
                                .seq_len = 4,
                                .hidden_size = 16,
                                .dtype = storage::DType::kBF16};
  storage::ShardWriter writer(path_for(shard()), info);
  for (int sequence = 0; sequence < 2; ++sequence) {
    writer.append(std::vector<std::byte>(info.bytes_per_sequence(), std::byte(sequence + 7)));
  }
  return writer.finish(shard());
}

storage::FileRecord SmallRun::write_maps(const std::string& name) const {
  const std::vector<std::byte> zeros(4 * 2 * 8 * 4);
  std::map<std::string, storage::TensorView> tensors;
  tensors["model.layers.0.self_attn.feature_map_q.mlp.layer"] = {
      storage::DType::kF32, {2, 8, 4}, zeros};
  storage::write_safetensors(path_for(name), tensors);
  return record_of(name);
}

storage::FileRecord SmallRun::write_description() const {
  const std::string name = student() + "/hedgerow.json";
  std::ofstream(path_for(name))
      << R"({"format": "student/1", "attention": {"window": "terraced"}, "softmax_layers": [1]})";
  return record_of(name);
}

storage::FileRecord SmallRun::write_provenance() const {
  const std::string name = student() + "/provenance.json";
  std::ofstream(path_for(name)) << R"({"format": "provenance/1", "layers": []})";
  return record_of(name);
}

}  // namespace hedgerow::coordinator::cli
