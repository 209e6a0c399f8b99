#include "worker/transfer/block_input.hpp"

#include <ATen/ATen.h>

#include <chrono>

#include "storage/base/error.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {

using storage::Error;
using storage::ErrorKind;

BlockInput::BlockInput(RunContext& run, const wire::Task& task, std::unique_ptr<CopyEngine> engine)
    : run_(run), capture_plan_(run.capture_plan()), engine_(std::move(engine)) {
  if (task.first_layer == 0) return;
  reader_.emplace(
      run.layout(), task.inputs, std::chrono::seconds(run.recipe().workers.file_patience_s));
  const storage::ShardInfo& info = reader_->info();
  const std::int64_t seq_len = run.tokens(storage::DataStage::kTransfer).seq_len;
  if (info.seq_len != seq_len || info.hidden_size != run.config().hidden_size) {
    throw Error(ErrorKind::kCorrupt,
                task.inputs.front().name + ": holds [" + std::to_string(info.seq_len) + ", " +
                    std::to_string(info.hidden_size) + "] a sequence, expected [" +
                    std::to_string(seq_len) + ", " + std::to_string(run.config().hidden_size) +
                    "] of this run's tokens and model; 'hedgerow check --repair' finds all such");
  }
  if (engine_ != nullptr) uploader_.emplace(*reader_, *engine_);
}

void BlockInput::plan(std::vector<std::int64_t> capture_indices) {
  if (uploader_) {
    uploader_->plan(std::move(capture_indices));
    return;
  }
  if (reader_) {
    reader_->plan(std::move(capture_indices));
    return;
  }
  order_ = std::move(capture_indices);
  position_ = 0;
}

at::Tensor BlockInput::next(std::int64_t count) {
  std::vector<at::Tensor> sequences;
  for (std::int64_t i = 0; i < count; ++i) {
    if (reader_) {
      sequences.push_back(stored());
      continue;
    }
    if (position_ == order_.size())
      throw Error(ErrorKind::kInternal, "block input read past its announced order");
    sequences.push_back(embedded(order_[position_++]));
  }
  return sequences.size() == 1 ? sequences.front() : at::cat(sequences);
}

double BlockInput::seconds_waited() const { return reader_ ? reader_->seconds_waited() : 0.0; }

at::Tensor BlockInput::embedded(std::int64_t capture_index) {
  const auto ids = run_.tokens(storage::DataStage::kTransfer)
                       .sequence(capture_plan_.token_sequence(capture_index));
  const at::Tensor input_ids = at::empty({1, static_cast<std::int64_t>(ids.size())}, at::kInt);
  std::copy(ids.begin(), ids.end(), input_ids.data_ptr<std::int32_t>());
  return round_to_stream(embed(input_ids.to(run_.device(), at::kLong), run_.embedding()),
                         run_.stream());
}

at::Tensor BlockInput::stored() {
  if (uploader_) return uploader_->next().to(run_.compute_dtype());
  const std::span<const std::byte> bytes = reader_->next();
  const storage::ShardInfo& info = reader_->info();
  // from_blob only to convert: the reader reuses its buffer at the next call.
  return at::from_blob(const_cast<std::byte*>(bytes.data()),
                       {1, info.seq_len, info.hidden_size},
                       at::TensorOptions(scalar_type(info.dtype)))
      .to(run_.device(), run_.compute_dtype(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace hedgerow::worker
