// What a worker process holds between the tasks of one run: the resolved recipe, the opened model,
// tokens, and the weights of the last block it worked on, so that the scheduler's affinity pays.
// Used by one task at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "storage/files/run_layout.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/capture_plan.hpp"
#include "storage/recipe/recipe.hpp"
#include "storage/shards/tokens_file.hpp"
#include "worker/device/device.hpp"
#include "worker/model/block_runner.hpp"

namespace hedgerow::worker {

class RunContext {
 public:
  // Opens run.toml and the model it names, on the recipe's device; `local_rank` picks among several
  // GPUs. Throws kNotFound, kUsage, kCorrupt, kUnavailable (plan.device is missing here).
  explicit RunContext(const std::filesystem::path& root,
                      int local_rank = local_rank_of_environment());
  // The same on this device, whatever the recipe says.
  RunContext(const std::filesystem::path& root, const at::Device& device);

  [[nodiscard]] const storage::RunLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const storage::Recipe& recipe() const noexcept { return recipe_; }
  [[nodiscard]] const storage::ModelDirectory& model() const noexcept { return model_; }
  [[nodiscard]] const storage::ModelConfig& config() const { return model_.config(); }
  [[nodiscard]] at::ScalarType compute_dtype() const noexcept { return compute_dtype_; }
  [[nodiscard]] at::ScalarType stream() const noexcept { return stream_; }
  [[nodiscard]] at::Device device() const noexcept { return device_; }

  // Loaded and verified on first use. Throws kCorrupt, kNotFound, kUsage.
  const storage::TokenSequences& tokens(const storage::TokensOf& of);
  storage::CapturePlan capture_plan();
  // The plan for finetune's text, where its objective needs the teacher's logits.
  storage::LogitsPlan logits_plan();
  const at::Tensor& embedding();
  // For loads of the run's model: they throw kUsage unless its weights are those that the run began
  // with. Valid while this object is.
  [[nodiscard]] LoadHooks load_hooks(std::function<void()> check_cancelled) const;
  const RopeTable& rope(std::int64_t seq_len);

  // The runner of a block; loads its weights unless they are the ones held, calling `loaded(n)`
  // before each tensor and after each layer, n layers being loaded. If it throws, no block is held.
  const BlockRunner& block(int first_layer,
                           int num_layers,
                           const std::function<void(int)>& loaded = {});
  // Forgets everything that lies on the device, and gives the device what LibTorch keeps of it.
  void release_memory();
  // First layer of the held weights, -1 if none.
  [[nodiscard]] int held_first_layer() const { return block_ ? block_->first_layer() : -1; }

 private:
  using ChooseDevice = std::function<at::Device(const std::string& word)>;
  RunContext(const std::filesystem::path& root, const ChooseDevice& choose);

  storage::RunLayout layout_;
  storage::Recipe recipe_;
  storage::ModelDirectory model_;
  at::Device device_;
  at::ScalarType compute_dtype_, stream_;
  std::map<storage::TokensOf, storage::TokenSequences> tokens_;
  at::Tensor embedding_;
  std::optional<RopeTable> rope_;
  std::optional<BlockRunner> block_;
};

}  // namespace hedgerow::worker
