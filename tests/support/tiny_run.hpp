// A run directory without a coordinator: one process executes capture and transfer of every block
// through the real files, as `serve` would, publishing what a task hands over by renaming it into
// place.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "storage/recipe/recipe.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::tests {

// Publishes into the run directory; remembers what came.
class LocalTaskContext : public worker::TaskContext {
 public:
  explicit LocalTaskContext(const storage::RunLayout& layout, storage::FencingToken token)
      : layout_(layout), token_(token) {}

  void report(const wire::Progress& progress) override { reports.push_back(progress); }
  [[nodiscard]] bool should_stop() const override { return stop_when && stop_when(*this); }
  void publish_shard(const storage::FileRecord& file, int shard) override;
  void publish_checkpoint(const storage::FileRecord& file, std::int64_t step) override;
  // Renames a task's file to its name, as the coordinator does at the commit.
  void commit(const storage::FileRecord& file) const;

  std::function<bool(const LocalTaskContext&)> stop_when;
  std::vector<wire::Progress> reports;
  std::map<int, storage::FileRecord> shards;
  std::map<std::int64_t, storage::FileRecord> checkpoints;  // by step
  std::vector<std::int64_t> published_steps;                // in the order of the checkpoints

 private:
  const storage::RunLayout& layout_;
  storage::FencingToken token_;
};

// A recipe that trains in seconds: tiny sequences, few steps.
storage::Recipe tiny_recipe(const std::filesystem::path& model);
// run.toml and the tokens of every stage (random ids, the same for the same seed): num_train
// sequences and 4 for validation.
void write_tiny_run(const std::filesystem::path& root,
                    const storage::Recipe& recipe,
                    std::int64_t num_train);

struct Block {
  int first_layer = 0, num_layers = 0;
};
std::vector<Block> blocks_of(int num_layers, int layers_per_block);

// The captured boundary and the artifact of every block.
struct PipelineResult {
  std::vector<std::vector<storage::FileRecord>> boundaries;  // [block]: the shards that enter it
  std::vector<storage::FileRecord> artifacts;                // by block
  std::vector<nlohmann::json> results;                       // of the transfers
  std::vector<nlohmann::json> captures;
  std::map<std::string, std::string> maps;  // tensor_hashes over all blocks
};
PipelineResult run_pipeline(const std::filesystem::path& root, const at::Device& device = at::kCPU);

// The tasks of a block as the coordinator grants them.
wire::Task capture_task(worker::RunContext& run,
                        int index,
                        const Block& block,
                        storage::FencingToken token,
                        const std::vector<storage::FileRecord>& inputs);
wire::Task transfer_task(const worker::RunContext& run,
                         int index,
                         const Block& block,
                         storage::FencingToken token,
                         const std::vector<storage::FileRecord>& inputs);
// `student` relative to the run directory.
wire::Task finetune_task(storage::FencingToken token, const std::string& student);

// All tensors of a safetensors file: name -> hash of the bytes, so that a failing comparison stays
// readable.
std::map<std::string, std::string> tensor_hashes(const std::filesystem::path& path);
// All tensors of a safetensors file of fp32.
std::map<std::string, std::vector<float>> tensor_values(const std::filesystem::path& path);

}  // namespace hedgerow::tests
