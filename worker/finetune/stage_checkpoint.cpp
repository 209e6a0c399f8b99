#include "worker/finetune/stage_checkpoint.hpp"

#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "storage/faults/fault_point.hpp"

namespace hedgerow::worker {
namespace {

constexpr const char* kPartsKey = "parts";  // of a checkpoint's state

std::unique_ptr<Communicator> first_pipeline(const storage::Mesh& mesh, Communicator& all) {
  if (mesh.pipeline == 1 || mesh.data_index(all.rank()) != 0) return nullptr;
  std::vector<int> ranks(static_cast<std::size_t>(mesh.pipeline));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_group(all, std::move(ranks));
}

}  // namespace

StageCheckpoint::StageCheckpoint(const storage::RunLayout& layout,
                                 storage::FencingToken token,
                                 const storage::Mesh& mesh,
                                 Communicator& communicator,
                                 AttemptFiles& files)
    : layout_(layout),
      token_(token),
      mesh_(mesh),
      files_(files),
      is_writer_(mesh.data_index(communicator.rank()) == 0),
      stages_(first_pipeline(mesh, communicator)) {}

StageCheckpoint::~StageCheckpoint() = default;

void StageCheckpoint::begin(std::int64_t step, storage::Checkpoint checkpoint) {
  step_ = step;
  if (!writes()) return;
  const int part = has_parts() ? stages_->rank() : storage::kWholeCheckpoint;
  if (has_parts()) state_ = std::exchange(checkpoint.state, nlohmann::json::object());
  file_ = std::async(
      std::launch::async,
      [&layout = layout_, token = token_, step, part](const storage::Checkpoint& written) {
        auto record = storage::write_checkpoint(layout, token, step, written, part);
        storage::fault_point("worker.finetune.checkpoint.written");
        return record;
      },
      std::move(checkpoint));
}

std::vector<storage::FileRecord> StageCheckpoint::parts() {
  struct Part {
    std::uint64_t size = 0;
    storage::Hash128 hash{};
  };
  static_assert(std::is_trivially_copyable_v<Part>);
  const storage::FileRecord record = file_.get();
  const Part own{record.size, record.root_hash};
  const auto bytes = stages_->all_gather(std::as_bytes(std::span(&own, 1)));
  std::vector<storage::FileRecord> records;
  for (int stage = 0; stage < mesh_.pipeline; ++stage) {
    Part part;
    std::memcpy(&part, bytes.data() + static_cast<std::size_t>(stage) * sizeof part, sizeof part);
    records.push_back({storage::RunLayout::checkpoint_part(token_, step_, stage, part.hash),
                       part.size,
                       part.hash});
  }
  return records;
}

void StageCheckpoint::settle() {
  if (!file_.valid()) return;
  if (!has_parts()) {
    files_.publish_checkpoint(file_.get(), step_);
    return;
  }
  const std::vector<storage::FileRecord> records = parts();
  if (stages_->rank() != 0) return;
  storage::Checkpoint checkpoint;
  checkpoint.state = std::move(state_);
  std::vector<std::string> names;
  for (const storage::FileRecord& part : records) {
    checkpoint.state[kPartsKey].push_back(
        {{"name", part.name}, {"size", part.size}, {"hash", part.root_hash.hex()}});
    names.push_back(part.name);
  }
  const auto record = storage::write_checkpoint(layout_, token_, step_, checkpoint);
  storage::fault_point("worker.finetune.checkpoint.indexed");
  files_.publish_checkpoint(record, step_, names);
}

storage::Checkpoint StageCheckpoint::gather(std::int64_t step, storage::Checkpoint checkpoint) {
  settle();
  if (!has_parts()) return checkpoint;
  if (!writes()) return {};
  begin(step, std::move(checkpoint));
  const std::vector<storage::FileRecord> records = parts();
  storage::Checkpoint all;
  if (stages_->rank() != 0) return all;
  for (const storage::FileRecord& part : records)
    all.tensors.merge(storage::read_checkpoint(layout_.resolve(part.name), part).tensors);
  return all;
}

void read_parts(const storage::RunLayout& layout, storage::Checkpoint& checkpoint) {
  const auto parts = checkpoint.state.find(kPartsKey);
  if (parts == checkpoint.state.end()) return;
  for (const auto& part : *parts) {
    const storage::FileRecord record{
        part.at("name").get<std::string>(),
        part.at("size").get<std::uint64_t>(),
        storage::Hash128::from_hex(part.at("hash").get<std::string>())};
    checkpoint.tensors.merge(storage::read_checkpoint(layout.resolve(record.name), record).tensors);
  }
}

}  // namespace hedgerow::worker
