#include "run_fixture.hpp"

#include <fstream>

#include "coordinator/state/fold.hpp"
#include "state_fixture.hpp"
#include "storage/files/hash.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::coordinator {

RunFixture::RunFixture() : layout_(directory_.path()) {
  model_.num_hidden_layers = 5;
  model_.num_attention_heads = 2;
  model_.num_key_value_heads = 1;
  model_.head_dim = 4;
  model_.hidden_size = 8;
  model_.intermediate_size = 16;
  model_.vocab_size = 32;
  model_.max_position_embeddings = 512;
  recipe_.attention.feature_dim = 8;
  recipe_.plan.layers_per_block = 2;
  geometry_ = small_geometry();
  geometry_.finetunes = false;
  geometry_.evaluates = {Subject::kTeacher, Subject::kTransfer};
  std::filesystem::create_directories(layout_.logs());
}

State RunFixture::replayed() const { return fold(storage::replay_journal(layout_)).state; }

storage::Journal RunFixture::open_journal() const {
  storage::ReplayResult replay;
  if (std::filesystem::exists(layout_.journal_directory()))
    replay = storage::replay_journal(layout_);
  return storage::Journal::start_term(layout_, replay);
}

int RunFixture::num_records(const std::string& type) const {
  int count = 0;
  for (const storage::JournalRecord& record : storage::replay_journal(layout_).records) {
    count += record.event.value("type", "") == type ? 1 : 0;
  }
  return count;
}

storage::FileRecord RunFixture::write_attempt(std::uint64_t token,
                                              const std::string& name,
                                              const std::string& text) const {
  const auto path = layout_.root() / storage::RunLayout::attempt_directory(token) /
                    std::filesystem::path(name).filename();
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return {name, text.size(), storage::hash_file(path)};
}

storage::FileRecord RunFixture::write_artifact(int block, std::uint64_t token) const {
  return write_artifact(block, token, {});
}

storage::FileRecord RunFixture::write_artifact(int block,
                                               std::uint64_t token,
                                               const Defect& defect) const {
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, storage::TensorView> tensors;
  const auto add = [&](const std::string& tensor, std::vector<std::int64_t> shape, float value) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    values[tensor].assign(static_cast<std::size_t>(count), value);
    tensors[tensor] = {
        storage::DType::kF32, std::move(shape), std::as_bytes(std::span(values[tensor]))};
  };
  const int first = geometry_.first_layer(block);
  for (int layer = first; layer < first + geometry_.layers_of(block); ++layer) {
    for (storage::TensorShape& tensor : layer_map_tensors(recipe_.attention, model_, layer)) {
      if (tensor.name == defect.except) continue;
      if (tensor.name == defect.reshaped) ++tensor.shape.back();
      add(tensor.name, tensor.shape, static_cast<float>(layer));
    }
  }
  if (!defect.surplus.empty()) add(defect.surplus, {1}, 0.0F);
  const std::string name = storage::RunLayout::block_artifact(block, token);
  const auto path = layout_.root() / storage::RunLayout::attempt_directory(token) /
                    std::filesystem::path(name).filename();
  std::filesystem::create_directories(path.parent_path());
  storage::write_safetensors(path, tensors);
  return {name, std::filesystem::file_size(path), storage::hash_file(path)};
}

}  // namespace hedgerow::coordinator
