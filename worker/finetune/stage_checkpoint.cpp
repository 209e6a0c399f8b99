#include "worker/finetune/stage_checkpoint.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/base/fault_point.hpp"

namespace hedgerow::worker {
namespace {

constexpr const char* kPartsKey = "parts";  // of a checkpoint's state

}  // namespace

StageCheckpoint::StageCheckpoint(const storage::RunLayout& layout,
                                 storage::FencingToken token,
                                 const storage::Mesh& mesh,
                                 Communicator& communicator,
                                 AttemptFiles& files)
    : layout_(layout), token_(token), mesh_(mesh), communicator_(communicator), files_(files) {}

StageCheckpoint::~StageCheckpoint() = default;

bool StageCheckpoint::has(std::int64_t step) const { return step_ == step; }

std::future<storage::FileRecord> StageCheckpoint::write(storage::Checkpoint state) {
  return std::async(
      std::launch::async,
      [&layout = layout_, token = token_, stage = stage(), step = step_](
          const storage::Checkpoint& checkpoint) {
        auto record = storage::write_checkpoint(layout, token, step, checkpoint, stage);
        storage::fault_point("worker.finetune.checkpoint.written");
        return record;
      },
      std::move(state));
}

void StageCheckpoint::begin(std::int64_t step, storage::Checkpoint state) {
  finish();
  step_ = step;
  if (!writes()) return;
  if (is_root() && mesh_.pipeline > 1)
    state_ = std::move(state);
  else
    file_ = write(std::move(state));
}

StageCheckpoint::Word StageCheckpoint::own_word(bool stops, bool waits) {
  const bool is_written =
      !is_root() && file_.valid() &&
      (waits || file_.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  if (is_written) {
    const storage::FileRecord record = file_.get();
    written_ = {step_, record.size, record.root_hash};
  }
  return {stops ? 1 : 0, written_};
}

std::vector<StageCheckpoint::Word> StageCheckpoint::exchange(const Word& own) {
  static_assert(std::is_trivially_copyable_v<Word>);
  const auto bytes = communicator_.all_gather(std::as_bytes(std::span(&own, 1)));
  std::vector<Word> words(static_cast<std::size_t>(communicator_.world_size()));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

std::string StageCheckpoint::part_name(int of_stage, const Part& part) const {
  return storage::RunLayout::checkpoint_part(token_, part.step, of_stage, part.hash);
}

void StageCheckpoint::go_on(const std::vector<Word>& words) {
  if (!state_) return;
  // Ranks of the first replica are those of the stages, in their order.
  nlohmann::json parts = nlohmann::json::array();
  std::vector<std::string> names;
  for (int of_stage = 1; of_stage < mesh_.pipeline; ++of_stage) {
    const Part& part = words[static_cast<std::size_t>(mesh_.rank(0, of_stage))].written;
    if (part.step != step_) return;
    names.push_back(part_name(of_stage, part));
    parts.push_back({{"name", names.back()}, {"size", part.size}, {"hash", part.hash.hex()}});
  }
  state_->state[kPartsKey] = std::move(parts);
  parts_ = std::move(names);
  file_ = write(std::move(*state_));
  state_.reset();
}

void StageCheckpoint::publish_if_written(bool waits) {
  if (!is_root() || !file_.valid()) return;
  if (!waits && file_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  files_.publish_checkpoint(file_.get(), step_, std::exchange(parts_, {}));
}

bool StageCheckpoint::meet(bool stops) {
  const auto words = exchange(own_word(stops, false));
  go_on(words);
  publish_if_written(false);
  return std::ranges::any_of(words, [](const Word& word) { return word.stops != 0; });
}

void StageCheckpoint::finish() {
  if (mesh_.pipeline > 1) go_on(exchange(own_word(false, true)));
  finish_alone();
}

void StageCheckpoint::finish_alone() { publish_if_written(true); }

storage::Checkpoint StageCheckpoint::gather(std::int64_t step, storage::Checkpoint state) {
  if (mesh_.pipeline == 1) return state;
  finish();
  step_ = step;
  if (writes() && !is_root()) file_ = write(std::move(state));
  const auto words = exchange(own_word(false, true));
  if (!is_root()) return {};
  for (int of_stage = 1; of_stage < mesh_.pipeline; ++of_stage) {
    const Part& part = words[static_cast<std::size_t>(mesh_.rank(0, of_stage))].written;
    const std::string name = part_name(of_stage, part);
    storage::Checkpoint of_part =
        storage::read_checkpoint(layout_.resolve(name), {name, part.size, part.hash});
    state.tensors.merge(of_part.tensors);
  }
  return state;
}

void read_parts(const storage::RunLayout& layout, storage::Checkpoint& checkpoint) {
  const auto parts = checkpoint.state.find(kPartsKey);
  if (parts == checkpoint.state.end()) return;
  for (const auto& part : *parts) {
    const auto name = part.at("name").get<std::string>();
    storage::Checkpoint read =
        storage::read_checkpoint(layout.resolve(name),
                                 {name,
                                  part.at("size").get<std::uint64_t>(),
                                  storage::Hash128::from_hex(part.at("hash").get<std::string>())});
    checkpoint.tensors.merge(read.tensors);
  }
}

}  // namespace hedgerow::worker
